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

namespace commensal::simulator {
namespace {

constexpr double kEpsilon = std::numeric_limits<double>::epsilon();
// As SciPy: how far outside of a tetrahedron is inside, and which are too flat to be used.
constexpr double kTolerance = 100 * kEpsilon;
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

  /// Numbers of the points of each tetrahedron, in qhull's order.
  [[nodiscard]] std::vector<std::array<std::size_t, 4>> tetrahedra() {
    std::vector<std::array<std::size_t, 4>> all;
    for (facetT* facet = state_.facet_list; facet->next != nullptr; facet = facet->next) {
      if (facet->upperdelaunay) continue;
      std::array<std::size_t, 4>& corners = all.emplace_back();
      for (std::size_t i = 0; i < corners.size(); ++i) {
        const auto* vertex = static_cast<vertexT*>(facet->vertices->e[i].p);
        corners[i] = static_cast<std::size_t>(qh_pointid(&state_, vertex->point));
      }
    }
    return all;
  }

 private:
  struct Close {
    void operator()(std::FILE* file) const noexcept { std::fclose(file); }
  };
  std::unique_ptr<std::FILE, Close> silence_;
  qhT state_{};
};

std::vector<std::array<std::size_t, 4>> triangulated(std::string_view what,
                                                     const std::vector<Point3>& points) {
  std::vector<double> flat;
  for (const Point3& point : points) flat.insert(flat.end(), point.begin(), point.end());
  Hull hull;
  if (const int status = hull.run(flat); status != 0) {
    throw std::invalid_argument(
        fmt::format("{}: {} points cannot be triangulated: they are too few, or in one plane "
                    "(qhull's status {})",
                    what, points.size(), status));
  }
  return hull.tetrahedra();
}

}  // namespace

ScatteredPoints::ScatteredPoints(std::string_view what, std::vector<Point3> points,
                                 std::vector<Value2> values)
    : points_(std::move(points)), values_(std::move(values)) {
  for (const auto& corners : triangulated(what, points_)) {
    if (auto made = tetrahedron(corners)) tetrahedra_.push_back(*made);
  }
}

std::optional<ScatteredPoints::Tetrahedron> ScatteredPoints::tetrahedron(
    std::array<std::size_t, 4> corners) const {
  Tetrahedron made{.corners = corners, .to_weights = {}, .low = {}, .high = {}};
  const Point3& last = points_[corners[3]];
  const std::array<Point3, 3> edges{minus(points_[corners[0]], last),
                                    minus(points_[corners[1]], last),
                                    minus(points_[corners[2]], last)};
  const double volume = dot(edges[0], cross(edges[1], edges[2]));
  if (volume == 0) return std::nullopt;
  for (std::size_t i = 0; i < 3; ++i) {
    made.to_weights[i] = cross(edges[(i + 1) % 3], edges[(i + 2) % 3]);
    for (double& value : made.to_weights[i]) value /= volume;
  }
  // The condition of the matrix whose columns are the edges, of which the other is the inverse.
  if (largest_sum(edges) * largest_sum(made.to_weights) > 1 / kFlattest) return std::nullopt;
  made.low = made.high = last;
  for (const std::size_t corner : corners) {
    for (std::size_t i = 0; i < 3; ++i) {
      made.low[i] = std::min(made.low[i], points_[corner][i]);
      made.high[i] = std::max(made.high[i], points_[corner][i]);
    }
  }
  return made;
}

std::optional<Value2> ScatteredPoints::at(const Point3& point) const {
  for (const Tetrahedron& candidate : tetrahedra_) {
    bool near = true;
    for (std::size_t i = 0; i < 3; ++i) {
      const double slack = kTolerance * std::max(1.0, std::abs(point[i]));
      near = near && point[i] >= candidate.low[i] - slack && point[i] <= candidate.high[i] + slack;
    }
    if (!near) continue;
    const Point3 from_last = minus(point, points_[candidate.corners[3]]);
    std::array<double, 4> weights{0, 0, 0, 1};
    bool inside = true;
    for (std::size_t i = 0; i < 3; ++i) {
      weights[i] = dot(candidate.to_weights[i], from_last);
      weights[3] -= weights[i];
    }
    for (const double weight : weights) {
      inside = inside && weight >= -kTolerance && weight <= 1 + kTolerance;
    }
    if (!inside) continue;
    Value2 sum{};
    for (std::size_t i = 0; i < 4; ++i) {
      const Value2& value = values_[candidate.corners[i]];
      sum[0] += weights[i] * value[0];
      sum[1] += weights[i] * value[1];
    }
    return sum;
  }
  return std::nullopt;
}

}  // namespace commensal::simulator
