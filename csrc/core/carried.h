// Loops that promise no loop-carried dependence (`affine_range` of classic NKI): who reads what an earlier iteration
// wrote. Followed while the iterations are recorded one after another. Accumulations are no such dependence: an
// instruction that combines a tile with something by an associative operation and writes it in place.
#pragma once
#include <map>
#include <unordered_map>

#include "core/program.h"
#include "core/table.h"

namespace core {

struct CarriedDependence {
  i32 loop, buffer, read, written;  // loop, read, written: sources
};

class CarriedDependences {
 public:
  void loop_begin(i32 source) {
    ++serial_;  // what the iteration around it has written so far is of an earlier time
    frames_.push_back({source, serial_, serial_});
  }
  void iteration() { frames_.back().current = ++serial_; }
  void loop_end();
  bool active() const { return !frames_.empty() && !pauses_; }
  void pause() { ++pauses_; }  // tiles that are made once and kept: no iteration's result
  void resume() { --pauses_; }
  void note(const Program& p, Opcode op, const std::vector<Value>& arguments, i32 source);
  const std::vector<CarriedDependence>& found() const { return found_; }

 private:
  using Ranges = std::vector<std::pair<i64, i64>>;  // half-open, ascending
  // What an access covers: rows of its tensor (partitions, or all dimensions of HBM but the last) times bytes of a row.
  struct Extent {
    Ranges rows, columns;
    bool known = false;
    bool operator==(const Extent&) const = default;
  };
  struct Interval {
    i64 first, last, serial;
    i32 source;
  };
  struct Band {
    i64 last_row;
    std::vector<Interval> columns;
  };
  struct History {
    std::map<i64, Band> bands;  // by first row
    bool lost = false;          // written where its indices do not say
  };
  struct Frame {
    i32 source;
    i64 begin, current;
  };
  std::vector<Frame> frames_;
  std::unordered_map<i32, History> histories_;
  std::vector<CarriedDependence> found_;
  i64 serial_ = 0;
  int pauses_ = 0;

  static Extent extent_of(const Program& p, const Access& a);
  static bool cover(Ranges& out, std::vector<std::pair<i64, i64>> dims);
  static bool accumulates(const Program& p, Opcode op, const std::vector<Value>& arguments, int source);
  void read(const Program& p, i32 access, i32 source);
  void write(i32 buffer, const Extent& e, i32 source, bool only_gaps);
  void paint(Band& band, std::pair<i64, i64> range, i32 source, bool only_gaps);
};

}  // namespace core
