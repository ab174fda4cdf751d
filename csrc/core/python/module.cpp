// opentrn.core._C: errors, tables, and the parts registered elsewhere.
#include "core/python/binding.h"

#include "core/dtype.h"
#include "core/gemm.h"

namespace core::python {

namespace {

// Each category becomes its class of opentrn.errors; place and cure become arguments.
void translate(const Error& e) {
  static const char* names[] = {"ConfigurationError",      "UnsupportedError", "UnimplementedError",
                                "UndefinedBehaviourError", "OutOfBoundsError", "CapacityError",
                                "CorruptFileError"};
  py::object type = py::module_::import("opentrn.errors").attr(names[int(e.category)]);
  py::dict keywords;
  if (!e.where.empty()) keywords["where"] = e.where;
  if (!e.cure.empty()) keywords["cure"] = e.cure;
  py::object error = type(py::str(e.what()), **keywords);
  PyErr_SetObject(type.ptr(), error.ptr());
}

Role role_from_name(const std::string& s) {
  static const std::map<std::string, Role> roles = {
      {"write", Role::write},   {"read", Role::read},    {"update", Role::update}, {"accumulate", Role::accumulate},
      {"begin", Role::begin},   {"any", Role::any},      {"alu", Role::alu},       {"activation", Role::activation},
      {"number", Role::number}, {"bool", Role::boolean}, {"list", Role::list},     {"text", Role::text},
      {"register", Role::reg},  {"engine", Role::engine}};
  auto it = roles.find(s);
  if (it == roles.end()) fail(Category::configuration, "'" + s + "' is not a parameter role");
  return it->second;
}

void define_instruction(const std::string& name, const py::dict& d) {
  const int op = opcode_from_name(name);
  if (op < 0) fail(Category::configuration, "the table defines '" + name + "', which the core does not know");
  Definition out;
  out.known = true;
  for (py::handle h : d["parameters"]) {
    py::dict p = py::reinterpret_borrow<py::dict>(h);
    Parameter q;
    q.name = p["name"].cast<std::string>();
    q.role = role_from_name(p["role"].cast<std::string>());
    for (py::handle s : p["spaces"])
      q.spaces |=
          u8(1 << (std::find(space_names.begin(), space_names.end(), s.cast<std::string>()) - space_names.begin()));
    q.or_number = p["or_number"].cast<bool>();
    q.optional = p["optional"].cast<bool>();
    if (p.contains("default")) {
      py::object v = p["default"];
      if (v.is_none())
        q.kind_of_default = 1;
      else if (py::isinstance<py::bool_>(v)) {
        q.kind_of_default = 4;
        q.number_default = v.cast<bool>();
      } else if (py::isinstance<py::str>(v)) {
        q.kind_of_default = 3;
        q.text_default = v.cast<std::string>();
      } else {
        q.kind_of_default = py::isinstance<py::int_>(v) ? 5 : 2;
        q.number_default = v.cast<double>();
      }
    }
    out.parameters.push_back(q);
  }
  auto engine_of = [](const std::string& wanted) {
    auto it = std::find(engine_names.begin(), engine_names.end(), wanted);
    if (it == engine_names.end()) fail(Category::configuration, "'" + wanted + "' is not an engine");
    return Engine(it - engine_names.begin());
  };
  for (py::handle e : d["engines"]) out.engines.push_back(engine_of(e.cast<std::string>()));
  out.generation = d["generation"].cast<int>();
  out.dma = d["dma"].cast<bool>();
  out.collective = d["collective"].cast<bool>();
  for (py::handle h : d["limits"]) {
    auto pair = h.cast<std::pair<std::string, std::string>>();
    out.limits.push_back({Formula(pair.first), pair.second});
  }
  for (py::handle h : d["compiler_engines"]) {
    auto pair = h.cast<std::pair<std::string, std::string>>();
    out.compiler_engines.push_back({Formula(pair.first), engine_of(pair.second)});
  }
  for (py::handle h : d["cycles"]) {
    auto pair = h.cast<std::pair<std::string, std::string>>();
    out.cycles.push_back({Formula(pair.first), Formula(pair.second)});
  }
  definition(Opcode(op)) = std::move(out);
}

py::array_t<u8> encode(const std::string& dtype, py::array_t<float, py::array::c_style | py::array::forcecast> values) {
  const Dtype d = dtype_from_name(dtype);
  const i64 n = values.size();
  py::array_t<u8> out(n * size_of(d));
  store_floats(d, values.data(), n, out.mutable_data(), size_of(d));
  return out;
}

py::array_t<float> decode(const std::string& dtype, py::array_t<u8, py::array::c_style> bytes) {
  const Dtype d = dtype_from_name(dtype);
  const i64 n = bytes.size() / size_of(d);
  py::array_t<float> out(n);
  load_floats(d, bytes.data(), size_of(d), n, out.mutable_data());
  return out;
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  m.doc() = "The virtual NeuronCore (csrc/core).";
  py::register_exception_translator([](std::exception_ptr p) {
    try {
      if (p) std::rethrow_exception(p);
    } catch (const Error& e) {
      translate(e);
    }
  });
  m.def("instruction_names", [] { return std::vector<std::string>(opcode_names.begin(), opcode_names.end()); });
  m.def("define_instruction", &define_instruction);
  m.def("define_chip", [](const std::string& name, const std::unordered_map<std::string, double>& values) {
    define_chip({name, values});
  });
  m.def("dtype_names", [] { return std::vector<std::string>(dtype_names.begin(), dtype_names.end()); });
  m.def("dtype_bytes", [](const std::string& name) { return size_of(dtype_from_name(name)); });
  m.def("encode", &encode, "float32 values to the bytes of a dtype");
  m.def("decode", &decode, "the bytes of a dtype to float32 values");
  m.def("set_gemm_hook", &set_gemm_hook);
  m.def("has_gemm_hook", &has_gemm_hook);
  m.def(
      "gemm",
      [](py::array_t<float, py::array::c_style> a, py::array_t<float, py::array::c_style> b) {
        const i64 k = a.shape(0), rows = a.shape(1), columns = b.shape(1);
        py::array_t<float> c({rows, columns});
        gemm(rows, columns, k, a.data(), rows, b.data(), columns, c.mutable_data(), columns, false);
        return c;
      },
      "a^T b, as nc_matmul computes it");
  register_builder(m);
  register_views(m);
  register_recorder(m);
  register_program(m);
  register_execution(m);
}

}  // namespace core::python
