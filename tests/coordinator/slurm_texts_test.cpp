// SPDX-License-Identifier: Apache-2.0
// What Slurm prints, as 22.05 and newer ones were seen or are documented to print it.
#include "coordinator/engines/slurm/slurm_texts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace commensal::cluster::slurm::slurm_texts_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

template <typename Call>
std::string refusal(Call call) {
  try {
    (void)call();
  } catch (const EngineFailed& error) {
    return error.what();
  }
  return "not refused";
}

TEST(SlurmTextsTest, AMarkNamesInstanceJobAndAttempt) {
  const Attempt attempt{JobId{"7.a_b-c"}, 12};
  EXPECT_EQ(mark_of("default-1f", attempt), "commensal:default-1f:7.a_b-c:12");
  EXPECT_EQ(attempt_of_mark("default-1f", "commensal:default-1f:7.a_b-c:12"), attempt);
}

TEST(SlurmTextsTest, NamesOfOthersAreNoMarks) {
  for (const char* name :
       {"", "train", "commensal", "commensal:other:7:1", "commensal:me:7", "commensal:me:7:x",
        "commensal:me::1", "commensal:me:7:1:2", "commensal:me:7:-1", "commensal:me:7:99999999999",
        "xcommensal:me:7:1", "commensal:me:7:1 "}) {
    EXPECT_FALSE(attempt_of_mark("me", name).has_value()) << name;
  }
}

TEST(SlurmTextsTest, ReadsLinesOfSqueue) {
  const auto jobs = jobs_from_squeue(
      "12|PENDING|JobHeldUser|commensal:me:7:1\n"
      "13|RUNNING|None|a|b\n"
      "14|NODE_FAIL|NodeDown|\n");
  EXPECT_THAT(jobs, ElementsAre(JobLine{12, "PENDING", "JobHeldUser", "commensal:me:7:1"},
                                JobLine{13, "RUNNING", "None", "a|b"},
                                JobLine{14, "NODE_FAIL", "NodeDown", ""}));
  EXPECT_THAT(jobs_from_squeue(""), IsEmpty());
}

TEST(SlurmTextsTest, LinesInsideANameAreLeftOut) {
  const auto jobs =
      jobs_from_squeue("1|FAILED|NonZeroExitCode|we\"ird|name\nx\n2|RUNNING|None|b\n");
  ASSERT_EQ(jobs.size(), 2U);
  EXPECT_EQ(jobs[0].name, "we\"ird|name");
  EXPECT_EQ(jobs[1].id, 2U);
}

TEST(SlurmTextsTest, GarbageOfSqueueIsShown) {
  for (const char* text : {"<html>", "JOBID|STATE", "x|RUNNING|None|n", "1|running|None|n",
                           "1|RUNNING|None", "-1|RUNNING|None|n"}) {
    EXPECT_THAT(refusal([&] { return jobs_from_squeue(text); }),
                AllOf(HasSubstr("squeue answers what cannot be read"), HasSubstr(text)));
  }
}

TEST(SlurmTextsTest, OnlyKnownEndsAreEnds) {
  for (const char* state : {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED",
                            "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE", "LAUNCH_FAILED"}) {
    EXPECT_TRUE(is_over(state)) << state;
  }
  for (const char* state : {"PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED",
                            "REQUEUED", "REQUEUE_HOLD", "STAGE_OUT", "SOMETHING_NEW", ""}) {
    EXPECT_FALSE(is_over(state)) << state;
  }
}

TEST(SlurmTextsTest, HeldByItsUserOnly) {
  EXPECT_TRUE(is_held({1, "PENDING", "JobHeldUser", ""}));
  EXPECT_FALSE(is_held({1, "PENDING", "JobHeldAdmin", ""}));
  EXPECT_FALSE(is_held({1, "PENDING", "Resources", ""}));
  EXPECT_FALSE(is_held({1, "RUNNING", "JobHeldUser", ""}));
}

TEST(SlurmTextsTest, CountsGenericResourcesInAllForms) {
  EXPECT_THAT(gres_from("gpu:2,seat:2").counts,
              UnorderedElementsAre(Pair("gpu", 2), Pair("seat", 2)));
  EXPECT_THAT(gres_from("gpu:2,seat:2").types, IsEmpty());
  const Gres typed = gres_from("gpu:a100:4(S:0,2),gpu:h100:1(S:1),seat:8");
  EXPECT_THAT(typed.counts, UnorderedElementsAre(Pair("gpu", 5), Pair("seat", 8)));
  EXPECT_THAT(typed.types, UnorderedElementsAre(Pair("gpu", "a100")));
  EXPECT_THAT(gres_from("gres/gpu:1").counts, UnorderedElementsAre(Pair("gpu", 1)));
  EXPECT_THAT(gres_from("gres/gpu:tesla:3").counts, UnorderedElementsAre(Pair("gpu", 3)));
  EXPECT_THAT(gres_from("gpu").counts, UnorderedElementsAre(Pair("gpu", 1)));
  EXPECT_THAT(gres_from("bandwidth:lustre:no_consume:4G,gpu:1").counts,
              UnorderedElementsAre(Pair("gpu", 1)));
  EXPECT_THAT(gres_from("tmpdisk:100000,gpu:1").counts, UnorderedElementsAre(Pair("gpu", 1)));
  for (const char* none : {"", "(null)", "N/A"}) EXPECT_THAT(gres_from(none).counts, IsEmpty());
}

TEST(SlurmTextsTest, GresThatCannotBeReadIsShown) {
  for (const char* text : {"gpu:x", "gpu:a100:-1", ":2", "gpu:2,,", "gpu:4K", "gpu:a100:77777771",
                           "gpu:600,gpu:600"}) {
    EXPECT_THAT(refusal([&] { return gres_from(text); }), HasSubstr(text)) << text;
  }
}

TEST(SlurmTextsTest, StatesOfNodesWithTheirSuffixes) {
  for (const char* state : {"idle", "mixed", "allocated", "completing", "IDLE", "planned", "idle~",
                            "idle#", "mixed-", "allocated+"}) {
    EXPECT_EQ(obstacle_of_node(state, "none"), "") << state;
  }
  EXPECT_EQ(obstacle_of_node("down", "Not responding"), "Slurm: down: Not responding");
  EXPECT_EQ(obstacle_of_node("mixed*", "none"), "Slurm: mixed, does not answer");
  EXPECT_EQ(obstacle_of_node("drained", "disk is full"), "Slurm: drained: disk is full");
  for (const char* state :
       {"down*", "draining", "drained*", "fail", "failing", "error", "unknown", "future", "inval",
        "reserved", "maint", "idle$", "idle@", "idle^", "idle%", "idle!", "powering_down", ""}) {
    EXPECT_NE(obstacle_of_node(state, ""), "") << state;
  }
}

TEST(SlurmTextsTest, ReadsNodesOfTheVersionInDebian) {
  const auto nodes = nodes_from_sinfo(
      "n1|idle|4|4000|gpu:2,seat:2|127.0.0.1|none\n"
      "n1|idle|4|4000|gpu:2,seat:2|127.0.0.1|none\n"
      "n2|down*|8|16000|(null)|10.0.0.2|Not responding | twice\n");
  ASSERT_EQ(nodes.size(), 2U);
  EXPECT_EQ(nodes[0].node,
            (EngineNode{"n1", {"n1:gpu:0", "n1:gpu:1"}, "gpu", 4000, 4000, true, ""}));
  EXPECT_EQ(nodes[0].seats, 2);
  EXPECT_EQ(nodes[1].node, (EngineNode{"n2",
                                       {"host"},
                                       "cpu",
                                       8000,
                                       16000,
                                       false,
                                       "Slurm: down, does not answer: Not responding | twice"}));
}

TEST(SlurmTextsTest, ReadsNodesOfNewerOnes) {
  const auto nodes =
      nodes_from_sinfo("g1|idle~|128+|515000+|gpu:a100:4(S:0-1),seat:4(S:0-1)|127.0.0.1|none\n");
  ASSERT_EQ(nodes.size(), 1U);
  EXPECT_EQ(nodes[0].node.devices.size(), 4U);
  EXPECT_EQ(nodes[0].node.device_type, "a100");
  EXPECT_EQ(nodes[0].node.cpu_milli, 128'000);
  EXPECT_TRUE(nodes[0].node.up);
}

TEST(SlurmTextsTest, GarbageOfSinfoIsShown) {
  for (const char* text : {"<html>", "n1|idle|4|4000|gpu:2|none", "n1|idle|x|4000|gpu:2|a|none",
                           "n1|idle|4|0|gpu:2|a|none", "|idle|4|4000|gpu:2|a|none",
                           "n1||4|4000|gpu:2|a|none", "n 1|idle|4|4000|gpu:2|a|none"}) {
    EXPECT_THAT(refusal([&] { return nodes_from_sinfo(text); }), HasSubstr(text));
  }
  EXPECT_THAT(refusal([] { return nodes_from_sinfo("n\xff|idle|4|4000|gpu:2|a|none"); }),
              HasSubstr("n?|idle"));
  EXPECT_THAT(nodes_from_sinfo(""), IsEmpty());
}

/// As `scontrol --oneliner show job -d` of 22.05 prints a job, with what its user chooses.
std::string shown_job(const std::string& entries, const std::string& name = "j.sh",
                      const std::string& command = "/home/ann/j.sh a b",
                      const std::string& comment = "") {
  return "JobId=2 ArrayJobId=2 ArrayTaskId=1 JobName=" + name +
         " UserId=root(0) GroupId=root(0) MCS_label=N/A Priority=4294901758 Nice=0 Account=(null) "
         "QOS=(null) JobState=RUNNING Reason=None RunTime=00:00:02 TimeLimit=UNLIMITED TimeMin=N/A "
         "ReqNodeList=(null) ExcNodeList=(null) NodeList=n2 BatchHost=n2 NumNodes=1 NumCPUs=1 "
         "TRES=cpu=1,mem=100M,node=1,billing=1 Socks/Node=* NtasksPerN:B:S:C=0:0:*:* CoreSpec=* "
         "JOB_GRES=seat:1   " +
         entries + " MinCPUsNode=1 MinMemoryCPU=100M MinTmpDiskNode=0 Features=(null) " +
         "OverSubscribe=OK Contiguous=0 Licenses=(null) Network=(null) Command=" + command +
         " WorkDir=/home/ann Comment=" + comment + " StdErr=/dev/null StdIn=/dev/null Power= \n";
}

TEST(SlurmTextsTest, ReadsTheDevicesOfARunningJob) {
  EXPECT_EQ(devices_from_scontrol(shown_job("Nodes=n1 CPU_IDs=0-1 Mem=100 GRES=gpu:1(IDX:1)")),
            (DevicesByNodes{{"n1", {1}}}));
  EXPECT_EQ(devices_from_scontrol(
                shown_job("Nodes=n[1-2] CPU_IDs=0 Mem=0 GRES=seat:2(IDX:5),gpu:a100:3(IDX:0,2-3)   "
                          "Nodes=n3 CPU_IDs=0 Mem=0 GRES=gpu:1(IDX:7)")),
            (DevicesByNodes{{"n[1-2]", {0, 2, 3}}, {"n3", {7}}}));
  EXPECT_EQ(devices_from_scontrol(shown_job("Nodes=c1 CPU_IDs=0 Mem=100 GRES=")),
            (DevicesByNodes{{"c1", {}}}));
  EXPECT_THAT(devices_from_scontrol(shown_job("")), IsEmpty()) << "it is over";
  EXPECT_THAT(devices_from_scontrol("JobState=PENDING"), IsEmpty());
  for (const char* list : {"", "x", "-1", "1-", "0-99999999999", "0-999999999", "1--2"}) {
    EXPECT_EQ(devices_from_scontrol(
                  shown_job("Nodes=n1 CPU_IDs= Mem= GRES=gpu:1(IDX:" + std::string{list} + ")")),
              (DevicesByNodes{{"n1", {}}}))
        << list;
  }
}

TEST(SlurmTextsTest, NoDeviceIsReadFromWhatAUserWrites) {
  const std::string entry = "Nodes=n2 CPU_IDs=1 Mem=100 GRES=gpu:1(IDX:0)";
  const DevicesByNodes real{{"n2", {0}}};
  const std::string claim = "Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:2(IDX:0-1)";
  EXPECT_EQ(devices_from_scontrol(shown_job(entry, claim)), real);
  EXPECT_EQ(devices_from_scontrol(shown_job(entry, "x\n" + claim)), real);
  EXPECT_EQ(devices_from_scontrol(shown_job(entry, "x", "j.sh " + claim, claim)), real);
  EXPECT_EQ(devices_from_scontrol(shown_job(entry, "x", "Nodes=" + std::string(1U << 20U, 'x'))),
            real);
  // Where it cannot be told from Slurm's own, it is not known.
  for (const std::string& text :
       {claim + " MinCPUsNode=1", "x\n   " + claim + " MinCPUsNode=1 y"}) {
    EXPECT_THAT(devices_from_scontrol(shown_job(entry, text)), IsEmpty());
    EXPECT_THAT(devices_from_scontrol(shown_job("", text)), IsEmpty());
    EXPECT_THAT(devices_from_scontrol(shown_job(entry, "x", text)), IsEmpty());
    EXPECT_THAT(devices_from_scontrol(shown_job(entry, "x", "y", text)), IsEmpty());
  }
}

TEST(SlurmTextsTest, ReadsTheIdThatSbatchPrints) {
  EXPECT_EQ(id_from_sbatch("12\n"), 12U);
  EXPECT_EQ(id_from_sbatch("12;cluster\n"), 12U);
  EXPECT_EQ(id_from_sbatch("sbatch: a remark of the site\n12\n"), 12U);
  for (const char* text : {"", "\n", "Submitted batch job 12", "0", "x;1"}) {
    EXPECT_THAT(refusal([&] { return id_from_sbatch(text); }), HasSubstr("sbatch answers"));
  }
}

TEST(SlurmTextsTest, ShownLinesAreShortAndPrintable) {
  EXPECT_EQ(first_line("one\ntwo"), "one");
  EXPECT_EQ(first_line("a\x1b[2Jb\xff"), "a?[2Jb?");
  EXPECT_EQ(first_line(std::string(1000, 'x')).size(), 200U);
}

TEST(SlurmTextsTest, ATimeLimitIsATimeAndAPartitionsIsNone) {
  EXPECT_EQ(time_limit_from_squeue("UNLIMITED\n"), "UNLIMITED");
  EXPECT_EQ(time_limit_from_squeue("2-03:00:00          \n"), "2-03:00:00");
  EXPECT_EQ(time_limit_from_squeue("5:00"), "5:00");
  for (const char* text :
       {"NOT_SET", "Partition_Limit", "--wrap=x", "", "5:00\n6:00", "UNLIMITED 1"}) {
    EXPECT_EQ(time_limit_from_squeue(text), "") << text;
  }
}

TEST(SlurmTextsTest, OfJobsOfOthersIdsAloneAreRead) {
  EXPECT_THAT(ids_from_squeue("12\n13_4\n14+1\n"), ElementsAre("12", "13_4", "14+1"));
  EXPECT_THAT(ids_from_squeue(""), IsEmpty());
  EXPECT_THAT(refusal([] { return ids_from_squeue("12\n--all\n"); }), HasSubstr("'--all'"));
}

}  // namespace
}  // namespace commensal::cluster::slurm::slurm_texts_test
