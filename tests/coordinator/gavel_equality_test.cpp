// SPDX-License-Identifier: Apache-2.0
// Gavel's physical-cluster traces: ours beside the figures of Gavel's own simulator (seed 0), and
// what the reader refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>

#include "coordinator/engines/simulator/readers/trace_reader.h"
#include "coordinator/engines/simulator/semantics.h"
#include "coordinator/engines/simulator/simulation.h"
#include "coordinator/policies/registry.h"

namespace commensal::simulator::gavel_equality_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// Unpacks the test data into a folder of its own.
class GavelTraces : public ::testing::Test {
 protected:
  GavelTraces() {
    std::string name = (std::filesystem::temp_directory_path() / "gavel-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder: " + name);
    folder_ = name;
    unpack("physical_cluster_throughputs.json");
  }
  ~GavelTraces() override { std::filesystem::remove_all(folder_); }

  void unpack(const std::string& name) const {
    const std::string packed = std::string(COMMENSAL_TEST_DATA) + "/gavel/" + name + ".gz";
    const std::unique_ptr<gzFile_s, int (*)(gzFile)> in(gzopen(packed.c_str(), "rb"), gzclose);
    if (!in) throw std::runtime_error("cannot open " + packed);
    std::ofstream out(folder_ / name);
    std::array<char, 4096> buffer{};
    for (int size = 0; (size = gzread(in.get(), buffer.data(), buffer.size())) > 0;) {
      out.write(buffer.data(), size);
    }
  }
  [[nodiscard]] std::string write(const std::string& row) const {
    std::ofstream(folder_ / "rows.csv")
        << "job_type,total_steps,num_gpu,priority_weight,slo,extra,arrival_s\n"
        << row << "\n";
    return folder_ / "rows.csv";
  }
  [[nodiscard]] std::map<std::string, double> run(
      const std::string& name, const std::string& policy_name,
      const std::map<std::string, std::string>& given = {}) const {
    unpack(name + ".csv");
    const Trace trace = read_trace(folder_ / (name + ".csv"), "gavel", {});
    const auto semantics = make_semantics("gavel", policy_name, trace);
    std::map<std::string, std::string> options = given;
    options.merge(semantics->options(policy_name));
    const auto policy = policies::make_policy(policy_name, options);
    const policies::Cluster cluster({{.name = "v", .gpu_type = "v100", .gpus = 8},
                                     {.name = "p", .gpu_type = "p100", .gpus = 16},
                                     {.name = "k", .gpu_type = "k80", .gpus = 24}});
    return semantics->metrics(trace, cluster,
                              simulate(trace, cluster, *semantics, policy_name, *policy, {}));
  }

  std::filesystem::path folder_;
};

double apart(double ours, double theirs) { return std::abs(ours / theirs - 1); }

void expect_equal(std::map<std::string, double> metrics, double makespan, double avg_jct,
                  double utilisation) {
  EXPECT_NEAR(metrics["utilisation"], utilisation, 0.0005);
  EXPECT_NEAR(metrics["makespan"], makespan, 0.0005);
  EXPECT_NEAR(metrics["avg_jct"], avg_jct, 0.0005);
}

TEST_F(GavelTraces, FifoIsEqual) {
  expect_equal(run("minimize_makespan", "fifo"), 253362.506, 170091.227, 0.164);
  expect_equal(run("max_min_fairness", "fifo"), 191978.808, 35449.618, 0.356);
  const std::map<std::string, std::string> aware{{"types", "aware"}};
  expect_equal(run("minimize_makespan", "fifo", aware), 87502.200, 38540.077, 0.779);
  expect_equal(run("max_min_fairness", "fifo", aware), 68321.278, 18643.392, 0.728);
}

TEST_F(GavelTraces, IsolatedIsEqual) {
  const std::map<std::string, std::string> isolated{{"objective", "isolated"}};
  expect_equal(run("minimize_makespan", "gavel", isolated), 80134.649, 33184.720, 0.903);
  expect_equal(run("max_min_fairness", "gavel", isolated), 72761.396, 18936.526, 0.758);
}

TEST_F(GavelTraces, GandivaIsEqualWhereAllArriveAtOnce) {
  expect_equal(run("minimize_makespan", "gandiva"), 75341.742, 35181.584, 0.922);
  auto metrics = run("max_min_fairness", "gandiva");
  EXPECT_LT(apart(metrics["makespan"], 64183.084), 0.02);
  EXPECT_LT(apart(metrics["avg_jct"], 17128.807), 0.02);
}

struct Expected {
  std::string trace, objective;
  double makespan, avg_jct;
};
const std::string kAtOnce = "minimize_makespan";
const std::string kOverTime = "max_min_fairness";

TEST_F(GavelTraces, ObjectivesByLinearProgramsAreWithinFivePercent) {
  for (const auto& [trace, objective, makespan, avg_jct] :
       {Expected{kAtOnce, "las gavel", 67290.522, 33527.133},
        Expected{kAtOnce, "makespan gavel", 63111.440, 62271.283},
        Expected{kAtOnce, "max throughput", 76569.500, 34348.501},
        Expected{kOverTime, "las gavel", 62026.801, 14399.765},
        Expected{kOverTime, "max throughput", 63428.596, 15984.976}}) {
    auto metrics = run(trace, "gavel", {{"objective", objective}});
    EXPECT_LT(apart(metrics["makespan"], makespan), 0.05) << trace << ", " << objective;
    EXPECT_LT(apart(metrics["avg_jct"], avg_jct), 0.05) << trace << ", " << objective;
  }
}

/// Many divisions are equally good here, and which of them a solver takes makes the difference.
TEST_F(GavelTraces, ObjectivesWithManyBestDivisionsAreWithinFifteenPercent) {
  for (const auto& [trace, objective, makespan, avg_jct] :
       {Expected{kAtOnce, "las agnostic", 80692.051, 37370.233},
        Expected{kAtOnce, "makespan agnostic", 78666.903, 68823.427},
        Expected{kOverTime, "las agnostic", 71810.515, 17829.121},
        Expected{kOverTime, "makespan agnostic", 70265.250, 26289.113},
        Expected{kOverTime, "makespan gavel", 58823.199, 22862.310}}) {
    auto metrics = run(trace, "gavel", {{"objective", objective}});
    EXPECT_LT(apart(metrics["makespan"], makespan), 0.15) << trace << ", " << objective;
    EXPECT_LT(apart(metrics["avg_jct"], avg_jct), 0.15) << trace << ", " << objective;
  }
}

/// No figures of others: Gavel's own program does not run its packed policies on these traces.
TEST_F(GavelTraces, SharedGpusServeTheObjectiveBetter) {
  const auto of = [&](const std::string& objective) {
    return run(kAtOnce, "gavel", {{"objective", objective}});
  };
  EXPECT_LT(of("makespan packed")["makespan"], 0.95 * of("makespan gavel")["makespan"]);
  EXPECT_LT(of("las packed")["avg_jct"], 0.95 * of("las gavel")["avg_jct"]);
  EXPECT_LT(of("max throughput packed")["avg_jct"], 0.95 * of("max throughput")["avg_jct"]);
}

TEST_F(GavelTraces, ABadRowIsNamed) {
  const auto read = [&](const std::string& row) {
    return [this, row] { (void)read_trace(write(row), "gavel", {}); };
  };
  const std::string good = "A3C,100,1,1,-1,,0";
  EXPECT_NO_THROW(read(good)());
  const auto named = [](std::string_view column, std::string_view value) {
    return ThrowsMessage<BadTrace>(
        AllOf(HasSubstr("rows.csv, line 2"), HasSubstr(column), HasSubstr(value)));
  };
  EXPECT_THAT(read("NoModel,100,1,1,-1,,0"), named("job_type", "\"NoModel\""));
  EXPECT_THAT(read("A3C,100,8,1,-1,,0"), named("job_type", "8 GPUs"));
  EXPECT_THAT(read("A3C,many,1,1,-1,,0"), named("total_steps", "\"many\""));
  EXPECT_THAT(read("A3C,100,0,1,-1,,0"), named("num_gpu", "\"0\""));
  EXPECT_THAT(read("A3C,100,1,0,-1,,0"), named("priority_weight", "\"0\""));
  EXPECT_THAT(read("A3C,100,1,1,-1,,-5"), named("arrival_s", "\"-5\""));
}

TEST_F(GavelTraces, BadRowsMayBeCountedInstead) {
  const Trace trace = read_trace(write("A3C,x,1,1,-1,,0\nA3C,100,1,1,-1,,0"), "gavel",
                                 {.skip_bad_rows = true, .profiles = {}});
  EXPECT_EQ(trace.skipped_rows, 1U);
  EXPECT_EQ(trace.jobs.size(), 1U);
}

TEST_F(GavelTraces, ATableThatIsMissingOrBadIsNamed) {
  const std::string file = write("A3C,100,1,1,-1,,0");
  const auto read = [&] { (void)read_trace(file, "gavel", {}); };
  std::ofstream(folder_ / "physical_cluster_throughputs.json")
      << R"({"v100": {"x": {"null": -1}}})";
  EXPECT_THAT(read, ThrowsMessage<BadTrace>(AllOf(HasSubstr("type v100"), HasSubstr("-1"))));
  std::filesystem::remove(folder_ / "physical_cluster_throughputs.json");
  EXPECT_THAT(read, ThrowsMessage<BadTrace>(HasSubstr("no table of throughputs")));
}

TEST_F(GavelTraces, TheProfileNeedsATable) {
  Trace trace{.source = "made up", .jobs = {}};
  EXPECT_THAT([&] { (void)make_semantics("gavel", "gavel", trace); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("made up has none")));
}

}  // namespace
}  // namespace commensal::simulator::gavel_equality_test
