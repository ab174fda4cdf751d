#include "core/carried.h"

#include <algorithm>
#include <cstring>

namespace core {

namespace {

constexpr std::size_t ranges_max = 1024;  // an access of more pieces is not followed

const char* const associative[] = {"add",         "multiply",   "maximum",     "minimum",
                                   "max",         "min",        "logical_or",  "logical_and",
                                   "logical_xor", "bitwise_or", "bitwise_and", "bitwise_xor"};

bool is_associative(const std::string& name) {
  return std::any_of(std::begin(associative), std::end(associative), [&](const char* a) { return name == a; });
}

const std::string& text_at(const Program& p, Opcode op, const std::vector<Value>& arguments, const char* parameter) {
  static const std::string none;
  const int n = definition(op).find(parameter);
  return n >= 0 && arguments[n].kind == ValueKind::text ? p.texts[arguments[n].payload] : none;
}

}  // namespace

void CarriedDependences::loop_end() {
  frames_.pop_back();
  if (frames_.empty()) histories_.clear();
}

// Grows the ranges by (stride, count) dimensions; false where there are too many.
bool CarriedDependences::cover(Ranges& out, std::vector<std::pair<i64, i64>> dims) {
  std::sort(dims.begin(), dims.end());
  for (auto [stride, count] : dims) {
    if (out.size() == 1 && stride <= out[0].second - out[0].first) {
      out[0].second += stride * (count - 1);
      continue;
    }
    const std::size_t n = out.size();
    if (n * std::size_t(count) > ranges_max) return false;
    for (i64 k = 1; k < count; ++k)
      for (std::size_t i = 0; i < n; ++i) out.push_back({out[i].first + k * stride, out[i].second + k * stride});
  }
  std::sort(out.begin(), out.end());
  Ranges merged;
  for (const auto& r : out) {
    if (!merged.empty() && r.first <= merged.back().second)
      merged.back().second = std::max(merged.back().second, r.second);
    else
      merged.push_back(r);
  }
  out = std::move(merged);
  return true;
}

CarriedDependences::Extent CarriedDependences::extent_of(const Program& p, const Access& a) {
  Extent e;
  const Buffer& b = p.buffers[a.buffer];
  const ExpressionTable& x = p.expressions;
  if (a.vector_access >= 0 || a.scalar_access >= 0 || a.scalar_expression >= 0 || !x.is_constant(a.offset)) return e;
  const i64 size = size_of(a.dtype);
  i64 row = size_of(b.dtype);
  for (std::size_t d = b.space == Space::hbm ? std::max<std::size_t>(1, b.shape.size()) - 1 : 1; d < b.shape.size();
       ++d) {
    if (!x.is_constant(b.shape[d])) return e;
    row *= x.value(b.shape[d]);
  }
  i64 offset = x.value(a.offset) * size;
  std::vector<std::pair<i64, i64>> dims;
  for (int d = 0; d < a.dims; ++d) {
    if (!x.is_constant(a.stride[d]) || !x.is_constant(a.count[d])) return e;
    i64 stride = x.value(a.stride[d]) * size;
    const i64 count = x.value(a.count[d]);
    if (count < 1) {
      e.known = true;
      return e;
    }
    if (count == 1 || !stride) continue;
    if (stride < 0) {
      offset += stride * (count - 1);
      stride = -stride;
    }
    dims.push_back({stride, count});
  }
  if (offset < 0 || row <= 0) return e;
  const i64 column = offset % row;
  std::vector<std::pair<i64, i64>> rows, columns;
  i64 end = column + size;
  for (auto [stride, count] : dims) {
    if (stride % row == 0) {
      rows.push_back({stride / row, count});
    } else {
      columns.push_back({stride, count});
      end += stride * (count - 1);
    }
  }
  e.columns = {{column, column + size}};
  e.rows = {{offset / row, offset / row + 1}};
  if (!cover(e.columns, columns)) return e;
  if (end > row) {  // whole rows one after another, or nothing that rows describe
    if (e.columns.size() != 1 || column || e.columns[0].second % row) return e;
    rows.push_back({1, e.columns[0].second / row});
    e.columns[0].second = row;
  }
  e.known = cover(e.rows, rows);
  return e;
}

// Whether the operand at `source`, which is also the destination, is accumulated into.
bool CarriedDependences::accumulates(const Program& p, Opcode op, const std::vector<Value>& arguments, int source) {
  const std::string& operand = definition(op).parameters[source].name;
  switch (op) {
    case Opcode::tensor_tensor: {
      const std::string& name = text_at(p, op, arguments, "op");
      return is_associative(name) || (name == "subtract" && operand == "data1");
    }
    case Opcode::tensor_scalar: {
      const std::string& name = text_at(p, op, arguments, "op0");
      return operand == "data" && text_at(p, op, arguments, "op1").empty() &&
             (is_associative(name) || name == "subtract");
    }
    case Opcode::scalar_tensor_tensor:
      return operand == "operand1" && is_associative(text_at(p, op, arguments, "op1"));
    case Opcode::dma_compute:
      return is_associative(text_at(p, op, arguments, "reduce_op"));
    default:
      return false;
  }
}

void CarriedDependences::note(const Program& p, Opcode op, const std::vector<Value>& arguments, i32 source) {
  const Definition& d = definition(op);
  struct Written {
    i32 buffer;
    Extent extent;
    bool accumulated;
  };
  std::vector<Written> written;
  std::vector<std::pair<i32, int>> sources;  // access, argument
  for (std::size_t n = 0; n < arguments.size(); ++n) {
    const Value& v = arguments[n];
    if (v.kind == ValueKind::list)
      for (const Value& w : p.lists[v.payload])
        if (w.kind == ValueKind::access) sources.push_back({i32(w.payload), int(n)});
    if (v.kind != ValueKind::access) continue;
    const Role role = d.parameters[n].role;
    if (role == Role::read || role == Role::any) {
      sources.push_back({i32(v.payload), int(n)});
      continue;
    }
    const Access& a = p.accesses[v.payload];
    for (const i32 index : {a.scalar_access, a.vector_access})
      if (index >= 0) read(p, index, source);
    bool accumulated = role == Role::accumulate;
    if (accumulated) {
      const int flag = d.find("accumulate");
      accumulated = flag < 0 || arguments[flag].kind != ValueKind::boolean || arguments[flag].payload;
    }
    written.push_back({a.buffer, extent_of(p, a), accumulated});
  }
  for (auto [access, argument] : sources) {
    const Access& a = p.accesses[access];
    const bool in_place = std::any_of(written.begin(), written.end(), [&](Written& w) {
      if (w.buffer != a.buffer || !w.extent.known || !accumulates(p, op, arguments, argument)) return false;
      if (!(extent_of(p, a) == w.extent)) return false;
      return w.accumulated = true;
    });
    if (!in_place) read(p, access, source);
  }
  for (const Written& w : written) write(w.buffer, w.extent, source, w.accumulated);
}

void CarriedDependences::read(const Program& p, i32 access, i32 source) {
  const Access& a = p.accesses[access];
  for (const i32 index : {a.scalar_access, a.vector_access})
    if (index >= 0) read(p, index, source);
  const auto it = histories_.find(a.buffer);
  if (it == histories_.end() || it->second.lost) return;
  const Extent e = extent_of(p, a);
  if (!e.known) return;
  auto& bands = it->second.bands;
  for (auto [first, last] : e.rows) {
    auto band = bands.upper_bound(first);
    if (band != bands.begin()) --band;
    for (; band != bands.end() && band->first < last; ++band) {
      if (band->second.last_row <= first) continue;
      for (const Interval& i : band->second.columns) {
        const bool meets = std::any_of(e.columns.begin(), e.columns.end(),
                                       [&](auto& c) { return c.first < i.last && i.first < c.second; });
        if (!meets) continue;
        for (const Frame& f : frames_) {
          if (i.serial < f.begin || i.serial >= f.current) continue;
          const bool known = std::any_of(found_.begin(), found_.end(), [&](const CarriedDependence& c) {
            return c.loop == f.source && c.read == source && c.written == i.source;
          });
          if (!known && found_.size() < 64) found_.push_back({f.source, a.buffer, source, i.source});
          return;
        }
      }
    }
  }
}

void CarriedDependences::paint(Band& band, std::pair<i64, i64> range, i32 source, bool only_gaps) {
  auto [first, last] = range;
  std::vector<Interval> out;
  i64 at = first;  // up to where the range is painted
  bool done = false;
  auto put = [&](i64 from, i64 to) {
    if (from < to) out.push_back({from, to, serial_, source});
  };
  for (const Interval& i : band.columns) {
    if (i.last <= first || i.first >= last) {
      if (i.first >= last && !done) {
        put(at, last);
        done = true;
      }
      out.push_back(i);
    } else if (only_gaps) {
      put(at, i.first);
      out.push_back(i);
      at = std::max(at, i.last);
    } else {
      if (i.first < first) out.push_back({i.first, first, i.serial, i.source});
      if (i.last > last) {
        put(at, last);
        done = true;
        out.push_back({last, i.last, i.serial, i.source});
      }
    }
  }
  if (!done) put(at, last);
  band.columns = std::move(out);
}

void CarriedDependences::write(i32 buffer, const Extent& e, i32 source, bool only_gaps) {
  History& h = histories_[buffer];
  if (h.lost) return;
  if (!e.known) {
    h.bands.clear();
    h.lost = true;
    return;
  }
  auto& bands = h.bands;
  auto split = [&](i64 row) {  // so that no band reaches over it
    auto it = bands.upper_bound(row);
    if (it == bands.begin()) return;
    --it;
    if (it->first == row || it->second.last_row <= row) return;
    Band rest = it->second;
    it->second.last_row = row;
    bands.emplace(row, std::move(rest));
  };
  for (auto [first, last] : e.rows) {
    split(first);
    split(last);
    for (i64 row = first; row < last;) {
      auto it = bands.lower_bound(row);
      if (it == bands.end() || it->first != row)
        it = bands.emplace(row, Band{it == bands.end() ? last : std::min(last, it->first), {}}).first;
      for (const auto& c : e.columns) paint(it->second, c, source, only_gaps);
      row = it->second.last_row;
    }
  }
}

}  // namespace core
