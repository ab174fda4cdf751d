// The value visitor: ranks of cores that execute a plan, switched where they wait for each other.
#pragma once
#include <functional>
#include <map>
#include <memory>

#include "core/memory.h"
#include "core/plan.h"
#include "core/tile.h"

namespace core {

struct Options {
  bool check_uninitialised = true;  // false: unwritten memory holds NaN (0xff bytes)
  bool follow_outputs = true;       // which elements of outputs nothing wrote is known at the end
  bool activation_ranges = false;   // the documented ranges of activation functions
  bool parallel = true;
  i64 step_limit = i64(1) << 40;  // instructions per core
  std::function<void()> poll;     // called now and then; may throw (Ctrl-C)
  std::function<void(const std::string& prefix, const Tile&)> print;
};

// HBM memory of one buffer of one rank (of one core, when private).
struct HbmBuffer {
  HbmBuffer() = default;
  ~HbmBuffer() { give_pages(std::move(bits)); }
  Pages pages, bits;  // no pages where the memory is the caller's: inputs and outputs
  Region region;
  // Accesses of each core since the last barrier, one bit per byte (two-core programs only). `own`: the core wrote the
  // byte. `written_by`: the same, but for bytes to which both cores gave one value. `read_by`: the core read the byte
  // without having written it.
  Pages read_by[2], written_by[2], own[2];
  i32 last_reader[2] = {-1, -1}, last_writer[2] = {-1, -1};
};

enum class Wait : u8 { none, barrier, sendrecv, collective, finished };

struct Rank;

struct Core {
  Core(Rank& rank, int index);
  Rank& rank;
  int index;
  std::size_t at = 0;      // next code step
  std::vector<i64> slots;  // loop variables, then registers
  std::vector<u8> register_written;
  struct LoopState {
    i64 value, stop, step;
  };
  std::vector<LoopState> stack;
  std::shared_ptr<CoreMemory> memory;
  std::shared_ptr<class OrderCheck> order;  // programs with explicit semaphores only
  bool worker = false;                      // runs iterations of a parallel loop
  Core* main = nullptr;                     // the core a worker works for; `shared` tensors stay in its memory
  const std::vector<u8>* shared = nullptr;
  std::shared_ptr<struct Workers> workers;
  Wait wait = Wait::none;
  bool wrote_hbm = false;  // since it was last switched to; the other core's turn
  i64 steps = 0;
  i32 current = -1;  // plan instruction being executed
  // Accumulator registers: Vector has one set, Scalar another.
  std::array<float, partitions_max> vector_accumulator{}, scalar_accumulator{};
  u64 random_state[partitions_max][2];
  // affine loops: bits written before the loop; what an iteration writes is hidden from the next one
  struct AffineFrame {
    std::size_t depth;
    std::vector<i32> buffers;
    std::vector<u8> before, all;
  };
  std::vector<AffineFrame> affine;
  std::vector<u8> touched;  // by buffer: whether this core has used its memory of an on-chip tensor
  void touch(i32 buffer);
  std::vector<std::unique_ptr<Begun>> begun;  // by buffer, PSUM tensors only
  Begun& begun_of(i32 buffer);
  // Per loop (by index): whether running its iterations in parallel was refused for good.
  std::vector<std::int8_t> parallel_refused;

  const Plan& plan() const;
  Tile resolve(i32 access, const char* operand, bool allow_outside = false, bool merge = true);
  i64 quantity(const Quantity& q) const { return plan().value(q, slots.data()); }

  // What the instruction being executed overwrites that the other core wrote since the last barrier.
  struct Rewrite {
    HbmBuffer* memory;
    u64 at;
    std::vector<u8> before;
  };
  std::vector<Rewrite> rewrites;

  // Row tables of indirect tiles of the instruction being executed.
  std::vector<std::unique_ptr<std::vector<i64>>> row_pool_;
  std::size_t rows_used_ = 0;
};

struct Rank {
  Rank(const Plan& plan, int index, int ranks, const Options& options);
  const Plan& plan;
  int index, ranks;
  const Options& options;
  std::vector<std::array<std::unique_ptr<HbmBuffer>, 2>> hbm;  // [buffer][core]; shared buffers live at core 0
  std::vector<std::unique_ptr<Core>> cores;
  HbmBuffer& memory_of(i32 buffer, int core);
  void bind_input(i32 buffer, u8* data, u64 bytes);  // borrowed memory
  // Borrowed, too. Where uninitialised reads are allowed, it holds what they shall find.
  void bind_output(i32 buffer, u8* data) { hbm[buffer][0]->region.base = data; }
};

// Runs all ranks to their end. Throws core::Error with the instruction and source line filled in.
void run(std::vector<std::unique_ptr<Rank>>& ranks);

// One instruction on one core (values).
void execute_instruction(Core& core, const PlanInstruction& i);
bool try_parallel_loop(Core& core, std::size_t at, i64 start, i64 stop, i64 step);
void run_steps(Core& core, std::size_t end);
[[noreturn]] void rethrow_with_place(Core& core, const Error& e);
void fill_unwritten(u8* at, u64 bytes,
                    Dtype dtype);  // what memory holds when uninitialised reads are allowed: NaN, or 4
// Fills what nothing has written; returns, for each element, whether all of it was written (nothing: all of them were).
std::vector<u8> settle_unwritten(const Region& r, Dtype dtype);
// Throws where the step reads a register that nothing has written.
void check_registers(Core& core, const std::vector<i32>& read);
void check_loop_registers(Core& core, i32 loop);
// Notes an access for the race check; for a write, before it happens.
void note_hbm(Core& core, const Tile& t, bool write);
// After a write: bytes that got the value which the other core had given them are no race, whoever comes first; a core
// that wrote a byte may then read it.
void settle_rewrites(Core& core);
void check_race(Rank& rank);

}  // namespace core
