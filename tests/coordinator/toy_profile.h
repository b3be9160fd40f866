// SPDX-License-Identifier: Apache-2.0
// A profile of an application that is easy to calculate with.
#pragma once

#include "coordinator/engines/simulator/training_profile.h"

namespace commensal::simulator {

/// Steps of 1 s at a local batch of 8 and 2 s at 16, of which a quarter synchronises; twice that on
/// two nodes. Batches 16 (the smallest), 32 and 64.
inline TrainingProfile toy_profile(std::vector<double> epoch_ends = {10, 20}) {
  MeasuredSteps steps;
  for (const char* placement : {"1", "2", "3", "4"}) {
    steps.placements[placement] = {{16, {2, 0.5}}, {8, {1, 0.25}}};
  }
  for (const char* placement : {"11", "12", "22"}) {
    steps.placements[placement] = {{8, {2, 0.5}}, {16, {4, 1}}};
  }
  for (const double gpus : {4.0, 16.0}) {
    for (const double local : {8.0, 16.0}) {
      steps.scaled.push_back({4, gpus, local});
      steps.scaled_seconds.push_back({local / 2, local / 8});
    }
  }
  MeasuredEpochs epochs;
  double step = 1;
  for (const std::int32_t batch : {16, 32, 64}) {
    for (const double end : epoch_ends) {
      epochs[batch].push_back({.progress = end + step - 1,
                               .iterations = end / step,
                               .metric = 50 + end,
                               .grad_sqr = 1,
                               .grad_var = step - 1});
    }
    step *= 2;
  }
  return {"toy", steps, epochs};
}

}  // namespace commensal::simulator
