// SPDX-License-Identifier: Apache-2.0
// Skews of the models that traces name.
#include "coordinator/engines/simulator/model_skew.h"

#include <algorithm>
#include <array>

namespace commensal::simulator {
namespace {

/// Parameters in thousands.
struct Model {
  std::string_view name;
  double largest;  ///< tensor
  double all;
};

constexpr double kVggDense = 25088.0 * 4096 / 1000;      // behind the last pooling
constexpr double kResNetBlock = 512.0 * 512 * 9 / 1000;  // a convolution of the last stage
constexpr double kAtariDense = 3136.0 * 512 / 1000;      // of the network of Mnih et al., 2015

constexpr std::array<Model, 18> kModels{{{"alexnet", 9216.0 * 4096 / 1000, 61101},
                                         {"vgg11", kVggDense, 132863},
                                         {"vgg16", kVggDense, 138358},
                                         {"vgg19", kVggDense, 143667},
                                         {"resnet18", kResNetBlock, 11690},
                                         {"resnet50", kResNetBlock, 25557},
                                         {"resnet101", kResNetBlock, 44549},
                                         {"resnet152", kResNetBlock, 60193},
                                         {"googlenet", 1024, 6625},
                                         {"inception3", 2048, 23835},
                                         {"inception_v3", 2048, 23835},
                                         {"inception4", 1536, 42680},
                                         {"mobilenet_v2", 1280, 3505},
                                         {"shufflenet_v2_x1_0", 1024, 2279},
                                         {"bert", 30522.0 * 768 / 1000, 109482},
                                         {"gpt2", 50257.0 * 768 / 1000, 124440},
                                         {"a2c", kAtariDense, 1687},
                                         {"dqn", kAtariDense, 1687}}};

}  // namespace

double model_skew(std::string_view model) {
  const auto* const found = std::find_if(kModels.begin(), kModels.end(),
                                         [&](const Model& known) { return known.name == model; });
  return found == kModels.end() ? -1 : found->largest / found->all;
}

}  // namespace commensal::simulator
