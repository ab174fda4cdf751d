// Host threads that share the iterations of a loop with the thread that runs it.
#pragma once
#include <functional>

#include "core/types.h"

namespace core {

// Calls body(worker, n) once for every n in [0, trips), on at most `threads` host threads; worker 0 is the caller.
// `body` may not throw. A helper counts only once it has come and taken an iteration: where the host's processors are
// busy with other work, the caller does the iterations itself and waits for nobody. Iterations are handed out in order,
// each to one worker; while another thread has a loop here, the caller's runs on the caller alone.
void share_iterations(i64 trips, int threads, const std::function<void(int worker, i64 n)>& body);

}  // namespace core
