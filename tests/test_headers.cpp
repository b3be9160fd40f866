// SPDX-License-Identifier: Apache-2.0
// A source for the target whose precompiled header all tests share.
int main() {}
