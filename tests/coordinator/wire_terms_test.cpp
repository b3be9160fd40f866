// SPDX-License-Identifier: Apache-2.0
// The rows of the terms, and what holds for each of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <set>
#include <string>

#include "coordinator/wire/terms.h"

namespace commensal::wire::wire_terms_test {
namespace {

using namespace commensal::literals;
using ::testing::HasSubstr;

constexpr JobClass kGuaranteed = JobClass::kGuaranteed;
constexpr JobClass kOpportunistic = JobClass::kOpportunistic;

/// A change of every term, each to another value than it has by itself.
TermsPatch all() {
  return {.memory = MemoryRange{1_GiB, 4_GiB},
          .share = ShareRange{0.25, 0.5},
          .law = "antman",
          .slo = 0.03,
          .idle_class = false,
          .affinity = false,
          .sm_share = 0.5};
}

TEST(TermsTest, EachRowNamesAnotherMemberAndSaysAllThatPeopleAreTold) {
  std::set<std::string> names;
  JobTerms terms;
  for_each_term([&](const auto& term) {
    EXPECT_TRUE(names.insert(term.name).second) << term.name;
    EXPECT_NE(to_string(term.kind), "");
    EXPECT_EQ(std::string_view{term.help}.back(), '.') << term.name;
    EXPECT_NE(std::string_view{term.otherwise}, "") << term.name;
    terms.*term.own = *(all().*term.change);
  });
  // Two rows with one member would leave another as it is.
  JobTerms applied;
  apply(all(), applied);
  EXPECT_EQ(applied, terms);
  EXPECT_EQ(as_patch(applied), all());
}

TEST(TermsTest, OnlyWhatAPatchNamesChanges) {
  for_each_term([](const auto& term) {
    TermsPatch one;
    EXPECT_TRUE(is_empty(one));
    one.*term.change = all().*term.change;
    EXPECT_FALSE(is_empty(one)) << term.name;
    EXPECT_THAT(describe(one), ::testing::StartsWith(term.name));
    JobTerms terms;
    apply(one, terms);
    EXPECT_NE(terms, JobTerms{}) << term.name;
    EXPECT_EQ(is_empty(class_terms(one)), !term.of_class) << term.name;
    EXPECT_EQ(is_empty(process_terms(one)), term.of_class) << term.name;
  });
  EXPECT_EQ(describe({}), "");
}

TEST(TermsTest, AChangeIsSaidInWords) {
  EXPECT_EQ(
      describe(all()),
      "memory 1 GiB:4 GiB, share 0.25:0.5, law antman, slo 3 %, idle_class off, affinity off, "
      "sm_share 0.5");
  EXPECT_EQ(describe({.memory = MemoryRange{}}), "memory 0 B:");
}

TEST(TermsTest, AWrongValueIsNamed) {
  EXPECT_EQ(problem_with(all(), kOpportunistic),
            "an SLO is the slowdown that a guaranteed job may see; this one is opportunistic");
  const auto problem = [](const TermsPatch& patch) { return problem_with(patch, kOpportunistic); };
  EXPECT_THAT(problem({.memory = MemoryRange{2_GiB, 1_GiB}}), HasSubstr("2 GiB > 1 GiB"));
  EXPECT_THAT(problem({.share = ShareRange{0.5, 1.25}}), HasSubstr("0.5:1.25"));
  EXPECT_THAT(problem({.share = ShareRange{-0.1, 1.0}}), HasSubstr("-0.1:1"));
  EXPECT_THAT(problem({.law = "jungle"}), HasSubstr("no pacing law 'jungle' (gap, duty_cycle"));
  EXPECT_EQ(problem({.sm_share = 1.5}), "sm_share must be above 0 and at most 1: 1.5");
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(problem({.sm_share = kNone}), HasSubstr("at most 1: "));
  EXPECT_EQ(problem_with(TermsPatch{.slo = 0.51}, kGuaranteed),
            "slo must be above 0 and at most 50 %: 51 %");
  EXPECT_EQ(problem_with(TermsPatch{.slo = 0.5}, kGuaranteed), "");
}

TEST(TermsTest, AClassIsRefusedWhatOnlyTheOtherHas) {
  for_each_term([](const auto& term) {
    TermsPatch one;
    one.*term.change = all().*term.change;
    for (const JobClass job_class : {kGuaranteed, kOpportunistic}) {
      const bool refused = *term.refusal != '\0' && job_class != term.only;
      EXPECT_EQ(problem_with(one, job_class), refused ? term.refusal : "") << term.name;
    }
  });
}

TEST(TermsTest, TermsThatAClassCannotHaveAreTakenBackWithAReason) {
  JobTerms terms;
  apply(all(), terms);
  JobTerms opportunistic = terms;
  EXPECT_THAT(drop_unusable(opportunistic, kOpportunistic), HasSubstr("an SLO is"));
  EXPECT_FALSE(opportunistic.slo);
  EXPECT_EQ(opportunistic.sm_share, 0.5);
  JobTerms guaranteed = terms;
  guaranteed.law = "jungle";
  guaranteed.slo = 7.0;
  EXPECT_THAT(drop_unusable(guaranteed, kGuaranteed),
              ::testing::AllOf(HasSubstr("'jungle'"), HasSubstr("700 %")));
  EXPECT_EQ(guaranteed.law, "");
  EXPECT_FALSE(guaranteed.slo);
  EXPECT_EQ(guaranteed.sm_share, 0.5) << "it holds for when its class changes";
  EXPECT_FALSE(guaranteed.idle_class) << "the same";
  EXPECT_EQ(drop_unusable(guaranteed, kGuaranteed), "");
  EXPECT_EQ(problem_with(guaranteed, kGuaranteed), "");
  guaranteed.memory = {2_GiB, 1_GiB};
  EXPECT_THAT(problem_with(guaranteed, kGuaranteed), HasSubstr("2 GiB > 1 GiB"));
}

}  // namespace
}  // namespace commensal::wire::wire_terms_test
