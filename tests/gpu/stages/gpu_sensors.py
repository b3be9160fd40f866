# SPDX-License-Identifier: Apache-2.0
"""SM clock, power and temperature of a GPU, read now and then through NVML; nothing is set."""

from __future__ import annotations

import ctypes
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

LIBRARY = "libnvidia-ml.so.1"
SM_CLOCK, GPU_TEMPERATURE = 1, 0


@dataclass(frozen=True)
class Reading:
    """What a card told at a time of the monotonic clock."""

    at: float
    sm_mhz: int
    milliwatts: int
    celsius: int


class NoSensors(RuntimeError):
    """The card's sensors cannot be read; the message says why."""


def nvml_reader(uuid: str, library: str = LIBRARY) -> Callable[[], Reading]:
    """Return a function that reads the sensors of a GPU.

    Raises:
        NoSensors: there is no NVML, it does not know the GPU, or it has no such sensors.
    """
    try:
        nvml = ctypes.CDLL(library)
        clock = nvml.nvmlDeviceGetClockInfo
        power = nvml.nvmlDeviceGetPowerUsage
        temperature = nvml.nvmlDeviceGetTemperature
        find, init, text = nvml.nvmlDeviceGetHandleByUUID, nvml.nvmlInit_v2, nvml.nvmlErrorString
    except (OSError, AttributeError) as error:
        raise NoSensors(f"no sensors in {library}: {error}") from error
    text.restype = ctypes.c_char_p

    def call(what: str, function: Any, *arguments: Any) -> None:
        if code := function(*arguments):
            raise NoSensors(f"NVML does not tell {what} of {uuid}: {text(code).decode()}")

    device = ctypes.c_void_p()
    call("anything", init)
    call("the handle", find, uuid.encode(), ctypes.byref(device))

    def read() -> Reading:
        values = [ctypes.c_uint() for _ in range(3)]
        call("the SM clock", clock, device, SM_CLOCK, ctypes.byref(values[0]))
        call("the power", power, device, ctypes.byref(values[1]))
        call("the temperature", temperature, device, GPU_TEMPERATURE, ctypes.byref(values[2]))
        return Reading(time.monotonic(), *(value.value for value in values))

    read()
    return read


class Sensors:
    """Reads again and again on a thread of its own, until it is closed or a reading fails."""

    def __init__(self, read: Callable[[], Reading], period: float = 1.0) -> None:
        self.readings: list[Reading] = []
        self.problem = ""
        self._read = read
        self._period = period
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ends.set()
        self._thread.join()

    def median_clock(self, begin: float, end: float) -> float | None:
        """Return the median SM clock of a stretch in MHz; None: nothing was read in it."""
        seen = [one.sm_mhz for one in list(self.readings) if begin <= one.at <= end]
        return statistics.median(seen) if seen else None

    def _run(self) -> None:
        while not self._ends.is_set():
            try:
                self.readings.append(self._read())
            except NoSensors as error:
                self.problem = str(error)
                return
            self._ends.wait(self._period)
