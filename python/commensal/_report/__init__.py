# SPDX-License-Identifier: Apache-2.0
"""What reports share: pages with plots that need nothing else, and whether a machine was quiet."""
