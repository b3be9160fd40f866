// SPDX-License-Identifier: Apache-2.0
// Values between scattered points.
#pragma once

#include <array>
#include <optional>
#include <string_view>
#include <vector>

namespace commensal::simulator {

using Point3 = std::array<double, 3>;
using Value2 = std::array<double, 2>;

/// Interpolates linearly inside of the tetrahedra of Delaunay's triangulation. That of a grid is not
/// unique: it is made by libqhull with the options of SciPy's LinearNDInterpolator ("Qbb Qc Qz Q12
/// Qt"), on the points in their order. Thread safety: does not change.
class ScatteredPoints {
 public:
  /// @param what  of what they are, for messages.
  /// @throws std::invalid_argument if they cannot be triangulated: fewer than five, or in one plane.
  ScatteredPoints(std::string_view what, std::vector<Point3> points, std::vector<Value2> values);

  /// Returns the values at a point; nothing outside of the hull.
  [[nodiscard]] std::optional<Value2> at(const Point3& point) const;

 private:
  struct Tetrahedron {
    std::array<std::size_t, 4> corners;
    std::array<Point3, 3> to_weights;  // rows: (point - last corner) to the weights of the others
    Point3 low;
    Point3 high;
  };

  [[nodiscard]] std::optional<Tetrahedron> tetrahedron(std::array<std::size_t, 4> corners) const;

  std::vector<Point3> points_;
  std::vector<Value2> values_;
  std::vector<Tetrahedron> tetrahedra_;
};

}  // namespace commensal::simulator
