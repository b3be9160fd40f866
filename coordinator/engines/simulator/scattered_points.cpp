// SPDX-License-Identifier: Apache-2.0
// Triangulates by libqhull, looks up by barycentric weights.
#include "coordinator/engines/simulator/scattered_points.h"

#include <fmt/format.h>
#include <libqhull_r/qhull_ra.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <unordered_map>

namespace commensal::simulator {
namespace {

constexpr double kEpsilon = std::numeric_limits<double>::epsilon();
// SciPy's: how far outside of a tetrahedron is inside, how far towards a flat one, what is flat.
constexpr double kTolerance = 100 * kEpsilon;
constexpr double kTowardsFlat = 1.5e-8;
constexpr double kFlattest = 1000 * kEpsilon;

Point3 minus(const Point3& a, const Point3& b) { return {a[0] - b[0], a[1] - b[1], a[2] - b[2]}; }

Point3 cross(const Point3& a, const Point3& b) {
  return {a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]};
}

double dot(const Point3& a, const Point3& b) { return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]; }

double largest_sum(const std::array<Point3, 3>& rows) {
  double largest = 0;
  for (const Point3& row : rows) {
    largest = std::max(largest, std::abs(row[0]) + std::abs(row[1]) + std::abs(row[2]));
  }
  return largest;
}

bool inside(double weight, double below = kTolerance) {
  return weight >= -below && weight <= 1 + kTolerance;
}

bool is_flat(const Tetrahedron& tetrahedron) { return std::isnan(tetrahedron.to_weights[0][0]); }

/// The inverse of the matrix whose columns are the edges from the last corner.
std::array<Point3, 3> inverse(const std::array<Point3, 3>& edges) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr std::array<Point3, 3> kNone{
      {{kNan, kNan, kNan}, {kNan, kNan, kNan}, {kNan, kNan, kNan}}};
  const double volume = dot(edges[0], cross(edges[1], edges[2]));
  if (volume == 0) return kNone;
  std::array<Point3, 3> rows{};
  for (std::size_t i = 0; i < 3; ++i) {
    rows[i] = cross(edges[(i + 1) % 3], edges[(i + 2) % 3]);
    for (double& value : rows[i]) value /= volume;
  }
  return largest_sum(edges) * largest_sum(rows) > 1 / kFlattest ? kNone : rows;
}

/// One run of libqhull and what it has allocated.
class Hull {
 public:
  Hull() : silence_(std::fopen("/dev/null", "w")) {
    if (!silence_) throw std::runtime_error("cannot open /dev/null");
    qh_zero(&state_, silence_.get());
  }
  ~Hull() {
    int pieces = 0;
    int bytes = 0;
    qh_freeqhull(&state_, qh_False);
    qh_memfreeshort(&state_, &pieces, &bytes);
  }
  Hull(const Hull&) = delete;
  Hull& operator=(const Hull&) = delete;

  /// Returns qhull's exit status. `points` must live on.
  int run(std::vector<double>& points) {
    std::string options = "qhull d Qbb Qc Qz Q12 Qt";
    return qh_new_qhull(&state_, 3, static_cast<int>(points.size() / 3), points.data(), qh_False,
                        options.data(), nullptr, silence_.get());
  }

  /// Returns the tetrahedra in qhull's order, without their weights.
  [[nodiscard]] std::vector<Tetrahedron> tetrahedra() {
    std::unordered_map<unsigned, std::int32_t> numbers;
    for_each([&](const facetT& facet) {
      numbers.emplace(facet.id, static_cast<std::int32_t>(numbers.size()));
    });
    std::vector<Tetrahedron> all;
    for_each([&](const facetT& facet) {
      Tetrahedron& made = all.emplace_back();
      for (std::size_t i = 0; i < made.corners.size(); ++i) {
        const auto* vertex = static_cast<vertexT*>(facet.vertices->e[i].p);
        const auto* other = static_cast<facetT*>(facet.neighbors->e[i].p);
        const auto number = numbers.find(other->id);
        made.corners[i] = static_cast<std::size_t>(qh_pointid(&state_, vertex->point));
        made.neighbours[i] = number == numbers.end() ? Tetrahedron::kNone : number->second;
        made.plane[i] = facet.normal[i];
      }
      made.plane[4] = facet.offset;
    });
    return all;
  }

  /// From sums of squares to the last coordinate, which qhull has scaled.
  [[nodiscard]] double lift_scale() const {
    return state_.SCALElast ? state_.last_newhigh / (state_.last_high - state_.last_low) : 1;
  }
  [[nodiscard]] double lift_shift() const {
    return state_.SCALElast ? -state_.last_low * lift_scale() : 0;
  }

 private:
  struct Close {
    void operator()(std::FILE* file) const noexcept { std::fclose(file); }
  };

  template <typename Call>
  void for_each(const Call& call) const {
    for (const facetT* facet = state_.facet_list; facet->next != nullptr; facet = facet->next) {
      if (!facet->upperdelaunay) call(*facet);
    }
  }

  std::unique_ptr<std::FILE, Close> silence_;
  qhT state_{};
};

}  // namespace

ScatteredPoints::ScatteredPoints(std::string_view what, std::vector<Point3> points,
                                 std::vector<Value2> values)
    : points_(std::move(points)), values_(std::move(values)) {
  constexpr std::size_t kLeast = 4;
  std::vector<double> flat;
  for (const Point3& point : points_) flat.insert(flat.end(), point.begin(), point.end());
  Hull hull;
  if (points_.size() < kLeast || hull.run(flat) != 0) {
    throw std::invalid_argument(
        fmt::format("{}: {} points cannot be triangulated: they are too few, or in one plane", what,
                    points_.size()));
  }
  tetrahedra_ = hull.tetrahedra();
  lift_scale_ = hull.lift_scale();
  lift_shift_ = hull.lift_shift();
  for (Tetrahedron& made : tetrahedra_) {
    const Point3& last = points_[made.corners[3]];
    made.to_weights =
        inverse({minus(points_[made.corners[0]], last), minus(points_[made.corners[1]], last),
                 minus(points_[made.corners[2]], last)});
  }
  low_ = high_ = points_.front();
  for (const Point3& point : points_) {
    for (std::size_t i = 0; i < 3; ++i) {
      low_[i] = std::min(low_[i], point[i]);
      high_[i] = std::max(high_[i], point[i]);
    }
  }
}

ScatteredPoints::Weights ScatteredPoints::weights(const Tetrahedron& tetrahedron,
                                                  const Point3& point) const {
  const Point3 from_last = minus(point, points_[tetrahedron.corners[3]]);
  Weights weights{0, 0, 0, 1};
  for (std::size_t i = 0; i < 3; ++i) {
    weights[i] = dot(tetrahedron.to_weights[i], from_last);
    weights[3] -= weights[i];
  }
  return weights;
}

/// From neighbour to neighbour while the lifted point rises above the plane of one. Where a better
/// one is found, the others are looked at from there.
std::size_t ScatteredPoints::near(const Point3& point) const {
  const double lifted = dot(point, point) * lift_scale_ + lift_shift_;
  const auto height = [&](std::size_t tetrahedron) {
    const auto& plane = tetrahedra_[tetrahedron].plane;
    return plane[4] + plane[0] * point[0] + plane[1] * point[1] + plane[2] * point[2] +
           plane[3] * lifted;
  };
  std::size_t at = 0;
  double best = height(at);
  for (bool changed = true; changed && best <= 0;) {
    changed = false;
    for (std::size_t side = 0; side < 4; ++side) {
      const std::int32_t neighbour = tetrahedra_[at].neighbours[side];
      if (neighbour == Tetrahedron::kNone) continue;
      const double there = height(static_cast<std::size_t>(neighbour));
      if (there <= best + kTolerance * (1 + std::abs(best))) continue;
      at = static_cast<std::size_t>(neighbour);
      best = there;
      changed = true;
    }
  }
  return at;
}

/// Through the first face that has the point on its other side, until none has.
std::optional<std::size_t> ScatteredPoints::walk(std::size_t from, const Point3& point) const {
  std::size_t at = from;
  for (std::size_t steps = 0; steps < 1 + tetrahedra_.size() / 4; ++steps) {
    const Weights found = weights(tetrahedra_[at], point);
    const auto* behind = std::find_if(found.begin(), found.end(),
                                      [](double weight) { return weight < -kTolerance; });
    if (behind == found.end()) {
      const bool holds =
          std::all_of(found.begin(), found.end(), [](double w) { return inside(w); });
      if (holds) return at;
      break;  // it is flat
    }
    const std::int32_t next =
        tetrahedra_[at].neighbours[static_cast<std::size_t>(behind - found.begin())];
    if (next == Tetrahedron::kNone) return std::nullopt;
    at = static_cast<std::size_t>(next);
  }
  return search(point);
}

/// One after the other, where flat ones are in the way.
std::optional<std::size_t> ScatteredPoints::search(const Point3& point) const {
  for (std::size_t i = 0; i < tetrahedra_.size(); ++i) {
    const Tetrahedron& candidate = tetrahedra_[i];
    if (!is_flat(candidate)) {
      const Weights found = weights(candidate, point);
      if (std::all_of(found.begin(), found.end(), [](double w) { return inside(w); })) return i;
      continue;
    }
    for (const std::int32_t neighbour : candidate.neighbours) {
      if (neighbour == Tetrahedron::kNone) continue;
      const auto beside = static_cast<std::size_t>(neighbour);
      if (holds_beside(i, beside, point)) return beside;
    }
  }
  return std::nullopt;
}

bool ScatteredPoints::holds_beside(std::size_t flat, std::size_t neighbour,
                                   const Point3& point) const {
  const Tetrahedron& candidate = tetrahedra_[neighbour];
  const Weights found = weights(candidate, point);  // not numbers if it is flat, too
  for (std::size_t side = 0; side < found.size(); ++side) {
    const bool towards = candidate.neighbours[side] == static_cast<std::int32_t>(flat);
    if (!inside(found[side], towards ? kTowardsFlat : kTolerance)) return false;
  }
  return true;
}

std::optional<Value2> ScatteredPoints::at(const Point3& point) const {
  for (std::size_t i = 0; i < 3; ++i) {
    if (point[i] < low_[i] - kTolerance || point[i] > high_[i] + kTolerance) return std::nullopt;
  }
  if (tetrahedra_.empty()) return std::nullopt;
  const auto found = walk(near(point), point);
  if (!found) return std::nullopt;
  const Tetrahedron& holder = tetrahedra_[*found];
  const Weights weight = weights(holder, point);
  Value2 sum{};
  for (std::size_t i = 0; i < weight.size(); ++i) {
    const Value2& value = values_[holder.corners[i]];
    sum[0] += weight[i] * value[0];
    sum[1] += weight[i] * value[1];
  }
  return sum;
}

}  // namespace commensal::simulator
