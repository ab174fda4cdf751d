#include "core/program.h"

#include <cstring>

#include "core/table.h"

namespace core {

namespace {

template <class Map, class Vector, class Key>
i32 intern(Map& map, Vector& items, const Key& key) {
  auto [it, fresh] = map.try_emplace(key, i32(items.size()));
  if (fresh) items.push_back(key);
  return it->second;
}

u64 fnv(const void* data, std::size_t n, u64 h = 1469598103934665603ULL) {
  const u8* p = static_cast<const u8*>(data);
  for (std::size_t i = 0; i < n; ++i) h = (h ^ p[i]) * 1099511628211ULL;
  return h;
}

constexpr char magic[8] = {'O', 'T', 'R', 'N', 'P', 'R', 'G', '1'};

// Fixed little-endian fields; the reader checks every count against what is left.
struct Writer {
  std::string out;
  template <class T>
  void number(T v) {
    i64 x = i64(v);
    out.append(reinterpret_cast<const char*>(&x), 8);
  }
  void text(const std::string& s) {
    number(s.size());
    out += s;
  }
  template <class T>
  void array(const T& v) {
    number(v.size());
    for (auto x : v) number(x);
  }
};

struct Reader {
  const std::string& in;
  std::size_t at = 0, end;
  [[noreturn]] void corrupt(const char* what) {
    fail(Category::corrupt_file, std::string("damaged program file: ") + what,
         "write it again with Program.to_bytes()");
  }
  i64 number() {
    if (end - at < 8) corrupt("it ends too early");
    i64 x;
    std::memcpy(&x, in.data() + at, 8);
    at += 8;
    return x;
  }
  i64 count() {
    const i64 n = number();
    if (n < 0 || std::size_t(n) > end - at) corrupt("an impossible count");
    return n;
  }
  i64 below(i64 limit, bool none = true) {
    const i64 n = number();
    if (n >= limit || n < (none ? -1 : 0)) corrupt("an index outside its table");
    return n;
  }
  std::string raw() {
    const i64 n = count();
    std::string s = in.substr(at, n);
    at += n;
    return s;
  }
  std::string text() {
    std::string s = raw();
    for (std::size_t i = 0; i < s.size();) {  // UTF-8
      const u8 c = u8(s[i++]);
      int more = c < 0x80 ? 0 : c >> 5 == 6 ? 1 : c >> 4 == 14 ? 2 : c >> 3 == 30 ? 3 : -1;
      if (more < 0) corrupt("a name that is no text");
      for (; more; --more, ++i)
        if (i >= s.size() || (u8(s[i]) & 0xc0) != 0x80) corrupt("a name that is no text");
    }
    return s;
  }
};

void write_values(Writer& w, const std::vector<std::vector<Value>>& lists) {
  w.number(lists.size());
  for (const auto& list : lists) {
    w.number(list.size());
    for (const Value& v : list) {
      w.number(v.kind);
      w.number(v.payload);
    }
  }
}

void read_values(Reader& r, std::vector<std::vector<Value>>& lists) {
  lists.resize(r.count());
  for (auto& list : lists) {
    list.resize(r.count());
    for (Value& v : list) {
      v.kind = ValueKind(r.below(8, false));
      v.payload = r.number();
    }
  }
}

// Whether an argument has the kind that its parameter takes; the plan and both visitors rely on it.
bool suits(const Parameter& q, const Value& v) {
  if (v.kind == ValueKind::none) return q.optional || q.role == Role::engine || q.kind_of_default == 1;
  const bool number = v.kind == ValueKind::integer || v.kind == ValueKind::real || v.kind == ValueKind::expression ||
                      v.kind == ValueKind::boolean;
  switch (q.role) {
    case Role::alu:
    case Role::activation:
    case Role::text:
    case Role::engine:
      return v.kind == ValueKind::text;
    case Role::list:
      return v.kind == ValueKind::list;
    case Role::reg:
      return v.kind == ValueKind::expression;
    case Role::number:
    case Role::boolean:
      return number;
    default:
      return v.kind == ValueKind::access || (q.or_number && number);
  }
}

void check_instructions(Reader& r, const Program& p) {
  for (const Instruction& i : p.instructions) {
    const Definition& d = definition(Opcode(i.opcode));
    const std::vector<Value>& values = p.argument_lists[i.arguments];
    if (values.size() != d.parameters.size()) r.corrupt("an instruction with too many or too few arguments");
    for (std::size_t n = 0; n < values.size(); ++n)
      if (!suits(d.parameters[n], values[n])) r.corrupt("an argument of a kind that its instruction does not take");
  }
  for (const Loop& l : p.loops) {
    const bool counted = l.variable >= 0 && l.start >= 0 && l.stop >= 0 && l.step >= 0;
    if (l.kind == LoopKind::while_register ? l.condition < 0 : !counted) r.corrupt("a loop without its bounds");
  }
  for (std::size_t n = 0; n < p.lists.size(); ++n)
    for (const Value& v : p.lists[n])
      if (v.kind == ValueKind::list && v.payload >= i64(n)) r.corrupt("a list that holds itself");
}

}  // namespace

std::size_t Program::ValuesHash::operator()(const std::vector<Value>& v) const {
  u64 h = 1469598103934665603ULL;
  for (const Value& x : v)
    h = (h ^ u64(x.kind) ^ u64(x.payload) * 0x9E3779B97F4A7C15ULL) * 1099511628211ULL, h ^= h >> 29;
  return h;
}
std::size_t Program::AccessHash::operator()(const Access& a) const {
  u64 h = u64(a.buffer) * 0x9E3779B97F4A7C15ULL ^ u64(a.dtype);
  auto mix = [&](i32 x) {
    h = (h ^ u32(x)) * 0xff51afd7ed558ccdULL;
    h ^= h >> 32;
  };
  mix(a.offset);
  for (int i = 0; i < a.dims; ++i) mix(a.stride[i]), mix(a.count[i]);
  mix(a.scalar_access), mix(a.scalar_expression), mix(a.vector_access);
  return h;
}

i32 Program::intern_text(const std::string& s) { return intern(text_index_, texts, s); }
i32 Program::intern_access(const Access& a) { return intern(access_index_, accesses, a); }
i32 Program::intern_list(const std::vector<Value>& v) { return intern(list_index_, lists, v); }
i32 Program::intern_arguments(const std::vector<Value>& v) { return intern(argument_index_, argument_lists, v); }
i32 Program::intern_source(const Source& s) { return intern(source_index_, sources, s); }
i32 Program::add_access(const Access& a) {
  accesses.push_back(a);
  return i32(accesses.size()) - 1;
}
i32 Program::add_arguments(const std::vector<Value>& v) {
  argument_lists.push_back(v);
  return i32(argument_lists.size()) - 1;
}

std::string Program::where(i32 source) const {
  if (source < 0 || sources[source].file < 0) return "";
  return texts[sources[source].file] + ":" + std::to_string(sources[source].line);
}

std::string Program::to_bytes() const {
  Writer w;
  w.text(name);
  w.text(chip);
  w.number(cores);
  w.number(loop_variables);
  for (const auto* table : {&texts, &symbols, &registers}) {
    w.number(table->size());
    for (const auto& s : *table) w.text(s);
  }
  w.number(expressions.size());
  for (i32 i = 0; i < expressions.size(); ++i) {
    const Expression& e = expressions[i];
    w.number(e.op);
    w.number(e.a);
    w.number(e.b);
    w.number(e.value);
  }
  w.number(buffers.size());
  for (const Buffer& b : buffers) {
    w.text(b.name);
    for (i64 v :
         {i64(b.space), i64(b.kind), i64(b.dtype), i64(b.core), i64(b.partition), b.byte, i64(b.pinned), i64(b.copies)})
      w.number(v);
    w.array(b.shape);
    w.text(std::string(b.data.begin(), b.data.end()));
  }
  w.number(accesses.size());
  for (const Access& a : accesses) {
    for (i64 v : {i64(a.buffer), i64(a.dtype), i64(a.dims), i64(a.offset)}) w.number(v);
    for (int d = 0; d < a.dims; ++d) {
      w.number(a.stride[d]);
      w.number(a.count[d]);
    }
    for (i64 v :
         {a.scalar_access, a.scalar_expression, a.scalar_stride, a.vector_access, a.vector_stride, a.vector_bound})
      w.number(v);
  }
  write_values(w, lists);
  write_values(w, argument_lists);
  w.number(sources.size());
  for (const Source& s : sources) {
    w.number(s.file);
    w.number(s.line);
  }
  w.number(instructions.size());
  for (const Instruction& i : instructions)
    for (i64 v : {i64(i.opcode), i64(i.engine), i64(i.arguments), i64(i.source), i64(i.name)}) w.number(v);
  w.number(loops.size());
  for (const Loop& l : loops)
    for (i64 v :
         {i64(l.variable), i64(l.start), i64(l.stop), i64(l.step), i64(l.condition), i64(l.kind), i64(l.source)})
      w.number(v);
  w.number(steps.size());
  for (const auto& core : steps) {
    w.number(core.size());
    for (const Step& s : core) {
      w.number(s.kind);
      w.number(s.index);
    }
  }
  const u64 sum = fnv(w.out.data(), w.out.size());
  std::string result(magic, 8);
  result.append(reinterpret_cast<const char*>(&sum), 8);
  return result + w.out;
}

Program Program::from_bytes(const std::string& bytes) {
  Reader r{bytes, 16, bytes.size()};
  if (bytes.size() < 16 || std::memcmp(bytes.data(), magic, 8) != 0)
    r.corrupt("not an OpenTRN program of this version");
  u64 sum;
  std::memcpy(&sum, bytes.data() + 8, 8);
  if (sum != fnv(bytes.data() + 16, bytes.size() - 16)) r.corrupt("its checksum does not match");
  Program p;
  p.name = r.text();
  p.chip = r.text();
  p.cores = i32(r.number());
  p.loop_variables = i32(r.number());
  if (p.cores < 1 || p.cores > 2) r.corrupt("an impossible number of cores");
  {
    i64 n = r.count();
    for (i64 i = 0; i < n; ++i)
      if (p.intern_text(r.text()) != i) r.corrupt("a repeated text");
  }
  p.symbols.resize(r.count());
  for (auto& s : p.symbols) s = r.text();
  p.registers.resize(r.count());
  for (auto& s : p.registers) s = r.text();
  {
    const i64 n = r.count();
    for (i64 i = 0; i < n; ++i) {
      Expression e{Node(r.below(11, false)), 0, 0, 0};
      const bool inner = e.op >= Node::add;
      const i64 limit = inner                  ? i
                        : e.op == Node::loop   ? p.loop_variables
                        : e.op == Node::symbol ? i64(p.symbols.size())
                        : e.op == Node::reg    ? i64(p.registers.size())
                                               : 0;
      e.a = i32(r.below(limit, !inner && e.op == Node::constant));
      e.b = i32(r.below(inner ? i : 0, !inner));
      e.value = r.number();
      if (p.expressions.append_raw(e) != i) r.corrupt("a repeated expression");
    }
  }
  const i64 e = p.expressions.size();
  p.buffers.resize(r.count());
  for (Buffer& b : p.buffers) {
    b.name = r.text();
    b.space = Space(r.below(3, false));
    b.kind = BufferKind(r.below(7, false));
    b.dtype = Dtype(r.below(dtype_count, false));
    b.core = i32(r.below(p.cores));
    b.partition = i32(r.below(partitions_max));
    b.byte = r.number();
    b.pinned = r.number();
    b.copies = i32(r.number());
    if (b.byte < -1 || b.byte > (i64(1) << 32) || b.copies < 1) r.corrupt("an impossible address");
    b.shape.resize(r.count());
    for (i32& s : b.shape) s = i32(r.below(e, false));
    const std::string data = r.raw();
    b.data.assign(data.begin(), data.end());
  }
  const i64 accesses = r.count();
  for (i64 i = 0; i < accesses; ++i) {
    Access a;
    a.buffer = i32(r.below(p.buffers.size(), false));
    a.dtype = Dtype(r.below(dtype_count, false));
    a.dims = u8(r.below(access_dims_max + 1, false));
    a.offset = i32(r.below(e, false));
    for (int d = 0; d < a.dims; ++d) {
      a.stride[d] = i32(r.below(e, false));
      a.count[d] = i32(r.below(e, false));
    }
    a.scalar_access = i32(r.below(i));
    a.scalar_expression = i32(r.below(e));
    a.scalar_stride = i32(r.below(e));
    a.vector_access = i32(r.below(i));
    a.vector_stride = i32(r.below(e));
    a.vector_bound = i32(r.below(e));
    if (p.intern_access(a) != i) r.corrupt("a repeated access");
  }
  std::vector<std::vector<Value>> values;
  read_values(r, values);
  for (auto& v : values) p.intern_list(v);
  values.clear();
  read_values(r, values);
  for (auto& v : values) p.intern_arguments(v);
  for (const auto* table : {&p.lists, &p.argument_lists})
    for (const auto& list : *table)
      for (const Value& v : list) {
        const i64 limit = v.kind == ValueKind::access       ? i64(p.accesses.size())
                          : v.kind == ValueKind::expression ? e
                          : v.kind == ValueKind::text       ? i64(p.texts.size())
                          : v.kind == ValueKind::list       ? i64(p.lists.size())
                                                            : -1;
        if (limit >= 0 && (v.payload < 0 || v.payload >= limit)) r.corrupt("an argument outside its table");
      }
  {
    const i64 n = r.count();
    for (i64 i = 0; i < n; ++i) {
      Source s;
      s.file = i32(r.below(p.texts.size()));
      s.line = i32(r.number());
      if (p.intern_source(s) != i) r.corrupt("a repeated source line");
    }
  }
  p.instructions.resize(r.count());
  for (Instruction& i : p.instructions) {
    i.opcode = u16(r.below(opcode_count, false));
    i.engine = u8(r.below(engine_count, false));
    i.arguments = i32(r.below(p.argument_lists.size(), false));
    i.source = i32(r.below(p.sources.size()));
    i.name = i32(r.below(p.texts.size()));
  }
  p.loops.resize(r.count());
  for (Loop& l : p.loops) {
    l.variable = i32(r.below(p.loop_variables));
    l.start = i32(r.below(e));
    l.stop = i32(r.below(e));
    l.step = i32(r.below(e));
    l.condition = i32(r.below(p.registers.size()));
    l.kind = LoopKind(r.below(5, false));
    l.source = i32(r.below(p.sources.size()));
  }
  p.steps.resize(r.count());
  if (i32(p.steps.size()) != p.cores) r.corrupt("a core without instructions");
  for (auto& core : p.steps) {
    core.resize(r.count());
    std::vector<i32> open;
    for (Step& s : core) {
      s.kind = StepKind(r.below(3, false));
      s.index = i32(r.below(s.kind == StepKind::instruction ? p.instructions.size() : p.loops.size(), false));
      if (s.kind == StepKind::loop) open.push_back(s.index);
      if (s.kind != StepKind::end) continue;
      if (open.empty() || open.back() != s.index) r.corrupt("an end without its loop");
      open.pop_back();
    }
    if (!open.empty()) r.corrupt("a loop without an end");
  }
  if (r.at != r.end) r.corrupt("bytes after its end");
  check_instructions(r, p);
  return p;
}

bool has_semaphores(const Program& p) {
  for (const Instruction& i : p.instructions)
    if (Opcode(i.opcode) == Opcode::semaphore_signal || Opcode(i.opcode) == Opcode::semaphore_wait) return true;
  return false;
}

}  // namespace core
