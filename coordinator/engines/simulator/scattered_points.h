// SPDX-License-Identifier: Apache-2.0
// Values between scattered points.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace commensal::simulator {

using Point3 = std::array<double, 3>;
using Value2 = std::array<double, 2>;

/// A tetrahedron of Delaunay's triangulation.
struct Tetrahedron {
  static constexpr std::int32_t kNone = -1;

  std::array<std::size_t, 4> corners{};
  std::array<std::int32_t, 4> neighbours{};  ///< opposite of each corner; kNone at the hull
  std::array<double, 5> plane{};       ///< of its corners on the paraboloid: normal and offset
  std::array<Point3, 3> to_weights{};  ///< rows: (point - last corner) to the weights of the
                                       ///< others; not numbers if it is flat
};

/// Interpolates linearly inside of the tetrahedra of Delaunay's triangulation. That of a grid is
/// not unique, and the faces of neighbours need not fit together. So it is made by libqhull with
/// the options of SciPy's LinearNDInterpolator ("Qbb Qc Qz Q12 Qt"), on the points in their order,
/// and a point is looked up on SciPy's way: which of several tetrahedra holds it depends on that.
/// Thread safety: does not change.
class ScatteredPoints {
 public:
  /// @param what  of what they are, for messages.
  /// @throws std::invalid_argument if they cannot be triangulated: fewer than four, or in one
  /// plane.
  ScatteredPoints(std::string_view what, std::vector<Point3> points, std::vector<Value2> values);

  /// Returns the values at a point; nothing outside of the hull.
  [[nodiscard]] std::optional<Value2> at(const Point3& point) const;

 private:
  using Weights = std::array<double, 4>;

  [[nodiscard]] Weights weights(const Tetrahedron& tetrahedron, const Point3& point) const;
  [[nodiscard]] std::size_t near(const Point3& point) const;
  [[nodiscard]] std::optional<std::size_t> walk(std::size_t from, const Point3& point) const;
  [[nodiscard]] std::optional<std::size_t> search(const Point3& point) const;
  [[nodiscard]] bool holds_beside(std::size_t flat, std::size_t neighbour,
                                  const Point3& point) const;

  std::vector<Point3> points_;
  std::vector<Value2> values_;
  std::vector<Tetrahedron> tetrahedra_;
  Point3 low_{};
  Point3 high_{};
  double lift_scale_ = 1;  // from squares to the last coordinate of the paraboloid
  double lift_shift_ = 0;
};

}  // namespace commensal::simulator
