// Running programs for Python.
#include "core/machine.h"
#include "core/python/binding.h"
#include "core/time.h"

namespace core::python {

namespace {

// An array of bytes that are yet to be written.
py::array_t<u8> output_array(i64 bytes) {
  if (bytes < i64(1) << 16) return py::array_t<u8>(bytes);
  auto pages = std::make_unique<Pages>(take_pages(u64(bytes)));
  u8* data = pages->data();
  const py::capsule owner(pages.release(), [](void* p) {
    const std::unique_ptr<Pages> mine(static_cast<Pages*>(p));
    give_pages(std::move(*mine));
  });
  return py::array_t<u8>(bytes, data, owner);
}

// inputs: one dict per rank, name -> C-contiguous array whose bytes are the tensor; returns per rank name -> bytes, and
// name -> which elements were written of outputs where some were not.
py::list run_programs(const std::vector<PyProgram*>& programs, const py::list& inputs,
                      const std::map<std::string, i64>& symbols, bool check, bool zero_outputs, bool ranges,
                      bool parallel, i64 step_limit, py::object on_print) {
  Options options;
  options.check_uninitialised = check;
  options.follow_outputs = check || !zero_outputs;
  options.activation_ranges = ranges;
  options.parallel = parallel;
  options.step_limit = step_limit;
  options.poll = [] {
    py::gil_scoped_acquire hold;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  };
  if (!on_print.is_none())
    options.print = [&](const std::string& prefix, const Tile& t) {
      py::gil_scoped_acquire hold;
      py::array_t<u8> bytes(t.partitions * t.elements * t.bytes);
      u8* to = bytes.mutable_data();
      for (i64 p = 0; p < t.partitions; ++p)
        for_runs(t, t.row(p), 0, t.elements, [&](u8* at, i64 stride, i64 n, i64 done) {
          for (i64 i = 0; i < n; ++i) std::copy_n(at + i * stride, t.bytes, to + (p * t.elements + done + i) * t.bytes);
        });
      on_print(prefix, bytes, dtype_names[int(t.dtype)], py::make_tuple(t.partitions, t.elements));
    };
  std::vector<std::shared_ptr<Plan>> plans;
  std::vector<std::unique_ptr<Rank>> ranks;
  std::vector<py::array> keep;
  py::list results;
  for (std::size_t r = 0; r < programs.size(); ++r) {
    plans.push_back(programs[r]->plan(symbols));
    const Plan& plan = *plans.back();
    ranks.push_back(std::make_unique<Rank>(plan, int(r), int(programs.size()), options));
    py::dict given = inputs[r];
    py::dict out;
    for (i32 b = 0; b < i32(plan.program->buffers.size()); ++b) {
      const Buffer& buffer = plan.program->buffers[b];
      if (buffer.space != Space::hbm) continue;
      const bool input = buffer.kind == BufferKind::input || buffer.kind == BufferKind::inout;
      if (input && !given.contains(buffer.name.c_str()))
        fail(Category::configuration, "input '" + buffer.name + "' is missing", "pass it in inputs");
      if (input) {
        py::array array = given[buffer.name.c_str()].cast<py::array>();
        if (buffer.kind == BufferKind::inout) {
          array = array.attr("copy")().cast<py::array>();
          out[buffer.name.c_str()] = array;
        }
        keep.push_back(array);
        ranks.back()->bind_input(b, static_cast<u8*>(const_cast<void*>(array.data())), u64(array.nbytes()));
      } else if (buffer.kind == BufferKind::output) {
        py::array_t<u8> array = output_array(plan.buffer_bytes[b]);
        if (!options.follow_outputs)
          std::fill_n(array.mutable_data(), plan.buffer_bytes[b], u8(0));
        else if (!check)
          fill_unwritten(array.mutable_data(), u64(plan.buffer_bytes[b]), buffer.dtype);
        ranks.back()->bind_output(b, array.mutable_data());
        out[buffer.name.c_str()] = array;
        keep.push_back(array);
      }
    }
    results.append(py::make_tuple(out, py::dict()));
  }
  {
    py::gil_scoped_release release;
    run(ranks);
  }
  for (std::size_t r = 0; r < ranks.size(); ++r)
    for (i32 b = 0; b < i32(ranks[r]->hbm.size()); ++b) {
      const Buffer& buffer = ranks[r]->plan.program->buffers[b];
      if (buffer.kind != BufferKind::output || !options.follow_outputs) continue;
      const std::vector<u8> written = settle_unwritten(ranks[r]->memory_of(b, 0).region, buffer.dtype);
      if (!written.empty())
        results[r].cast<py::tuple>()[1].cast<py::dict>()[buffer.name.c_str()] =
            py::array_t<u8>(py::ssize_t(written.size()), written.data());
    }
  return results;
}

template <class T>
py::array_t<T> column(const std::vector<T>& v) {
  return py::array_t<T>(py::ssize_t(v.size()), v.data());
}

py::dict time_program(PyProgram& program, const std::map<std::string, i64>& symbols,
                      const std::map<std::string, i64>& registers, bool extrapolate, bool record, i64 limit,
                      bool reorder) {
  const auto plan = program.plan(symbols);
  TimeOptions options;
  options.extrapolate = extrapolate;
  options.record = record;
  options.reorder = reorder;
  options.registers = registers;
  options.step_limit = limit;
  options.poll = [] {
    py::gil_scoped_acquire hold;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  };
  TimeResult r;
  {
    py::gil_scoped_release release;
    r = time_plan(*plan, options);
  }
  py::dict d;
  d["nanoseconds"] = r.nanoseconds;
  d["instructions"] = r.instructions;
  d["stepped"] = r.stepped;
  d["flops"] = r.flops;
  d["hardware_flops"] = r.hardware_flops;
  py::list cores;
  for (const CoreTime& c : r.cores) {
    py::dict one, busy, counts;
    for (int e = 1; e < engine_count; ++e) {
      busy[engine_names[e]] = c.busy[e];
      counts[engine_names[e]] = c.counts[e];
    }
    one["nanoseconds"] = c.nanoseconds;
    one["busy"] = busy;
    one["counts"] = counts;
    one["tensor_cycles"] = c.tensor_cycles;
    one["dma_issue"] = c.dma_issue;
    cores.append(one);
  }
  d["cores"] = cores;
  d["bytes"] = r.bytes;
  py::list stalls;
  for (const Stall& s : r.stalls)
    stalls.append(py::make_tuple(s.cause, s.nanoseconds, s.instruction, s.where, s.engine));
  d["stalls"] = stalls;
  py::list path;
  for (const PathStep& s : r.critical_path)
    path.append(py::make_tuple(s.instruction, s.where, s.start, s.end, s.engine, s.count));
  d["critical_path"] = path;
  d["assumptions"] = r.assumptions;
  py::dict intervals;
  intervals["instruction"] = column(r.interval_instruction);
  intervals["engine"] = column(r.interval_engine);
  intervals["core"] = column(r.interval_core);
  intervals["start_ns"] = column(r.interval_start);
  intervals["end_ns"] = column(r.interval_end);
  d["intervals"] = intervals;
  d["extrapolated_loops"] = r.extrapolated_loops;
  return d;
}

}  // namespace

void register_execution(py::module_& m) {
  m.def("run", &run_programs, py::arg("programs"), py::arg("inputs"), py::arg("symbols"), py::arg("check"),
        py::arg("zero_outputs"), py::arg("ranges"), py::arg("parallel"), py::arg("step_limit"), py::arg("on_print"));
  m.def("time", &time_program, py::arg("program"), py::arg("symbols"), py::arg("registers"), py::arg("extrapolate"),
        py::arg("record"), py::arg("limit"), py::arg("reorder") = false);
}

}  // namespace core::python
