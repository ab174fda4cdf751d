// Typed kernels of hot operators: the same path as the boxed fallback, without boxing.
//
// `register_typed<at::_ops::add_Tensor>(library)` registers the host path for that operator.
#pragma once

#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/IListRef.h>
#include <torch/library.h>

#include "device/dry.h"
#include "device/host_call.h"

namespace opentrn::device {

// The caller of a typed kernel holds every argument until it returns.
inline HostCall::Held borrow(const at::Tensor& tensor) { return HostCall::Held::borrowed(tensor); }

// What the kernel gets for an argument of type T; `get()` is passed on.
template <typename T, typename = void>
struct Taken {
  Taken(HostCall&, const std::decay_t<T>& given, int) : value(given) {}
  T get() { return value; }
  const std::decay_t<T>& value;
};

template <typename T>
struct Taken<T, std::enable_if_t<std::is_same_v<std::decay_t<T>, at::Tensor>>> {
  Taken(HostCall& call, const at::Tensor& given, int argument)
      : value(given.defined() ? call.take(borrow(given), argument) : at::Tensor()) {}
  T get() { return value; }
  at::Tensor value;
};

template <typename T>
struct Taken<T, std::enable_if_t<std::is_same_v<std::decay_t<T>, int64_t>>> {
  Taken(HostCall& call, int64_t given, int argument) : value(given) { call.see_number(given, argument); }
  T get() { return value; }
  int64_t value;
};

template <typename T>
struct Taken<T, std::enable_if_t<std::is_same_v<std::decay_t<T>, std::optional<int64_t>>>> {
  Taken(HostCall& call, const std::optional<int64_t>& given, int argument) : value(given) {
    if (given) call.see_number(*given, argument);
  }
  T get() { return value; }
  const std::optional<int64_t>& value;
};

template <typename T>
struct Taken<T, std::enable_if_t<std::is_same_v<std::decay_t<T>, std::optional<at::Tensor>>>> {
  Taken(HostCall& call, const std::optional<at::Tensor>& given, int argument) {
    if (given) value = given->defined() ? call.take(borrow(*given), argument) : *given;
  }
  T get() { return value; }
  std::optional<at::Tensor> value;
};

template <typename T>
struct Taken<T, std::enable_if_t<std::is_same_v<std::decay_t<T>, at::TensorList>>> {
  Taken(HostCall& call, at::TensorList given, int argument) {
    values.reserve(given.size());
    for (const at::Tensor& tensor : given) values.push_back(call.take(borrow(tensor), argument));
  }
  T get() { return values; }
  std::vector<at::Tensor> values;
};

template <typename T>
struct Taken<T, std::enable_if_t<std::is_same_v<std::decay_t<T>, at::ITensorListRef>>> {
  Taken(HostCall& call, const at::ITensorListRef& given, int argument) {
    values.reserve(given.size());
    for (const at::Tensor& tensor : given) values.push_back(call.take(borrow(tensor), argument));
    reference = at::ITensorListRef(values);
  }
  const at::ITensorListRef& get() { return reference; }
  std::vector<at::Tensor> values;
  at::ITensorListRef reference;
};

template <typename T>
struct Taken<T, std::enable_if_t<std::is_same_v<std::decay_t<T>, c10::List<std::optional<at::Tensor>>>>> {
  Taken(HostCall& call, const c10::List<std::optional<at::Tensor>>& given, int argument) {
    values.reserve(given.size());
    for (const std::optional<at::Tensor> tensor : given) {
      values.push_back(tensor && tensor->defined() ? call.take(borrow(*tensor), argument) : tensor);
    }
  }
  const c10::List<std::optional<at::Tensor>>& get() { return values; }
  c10::List<std::optional<at::Tensor>> values;
};

inline at::Tensor give(HostCall& call, at::Tensor&& result) { return call.give(std::move(result)); }
inline std::vector<at::Tensor> give(HostCall& call, std::vector<at::Tensor>&& results) {
  for (at::Tensor& result : results) result = call.give(std::move(result));
  return std::move(results);
}
template <typename... Results>
std::tuple<Results...> give(HostCall& call, std::tuple<Results...>&& results) {
  std::apply([&](auto&... result) { ((result = give(call, std::move(result))), ...); }, results);
  return std::move(results);
}

template <typename Op>
OperatorTraits& traits_of_typed() {
  static OperatorTraits& traits =
      traits_of(c10::Dispatcher::singleton().findSchemaOrThrow(Op::name, Op::overload_name));
  return traits;
}

// The written tensor that an in-place or out= operator returns: its only `Tensor&` argument.
template <typename First, typename... Rest>
at::Tensor& written_argument(First&& first, Rest&&... rest) {
  if constexpr (std::is_same_v<First, at::Tensor&>) {
    return first;
  } else {
    return written_argument(std::forward<Rest>(rest)...);
  }
}

template <typename Op, typename Schema>
struct TypedKernel;

template <typename Op, typename Result, typename... Arguments>
struct TypedKernel<Op, Result(Arguments...)> {
  static Result call(Arguments... arguments) {
    return run(std::index_sequence_for<Arguments...>{}, std::forward<Arguments>(arguments)...);
  }

 private:
  template <size_t... Index>
  static Result run(std::index_sequence<Index...>, Arguments... arguments) {
    if (C10_UNLIKELY(dry::concerned())) {
      torch::jit::Stack stack = c10::impl::boxArgs(arguments...);
      enter_operator();
      if (dry::run(handle(), traits_of_typed<Op>(), &stack, nullptr)) {
        if constexpr (std::is_same_v<Result, at::Tensor&>) {
          return written_argument(std::forward<Arguments>(arguments)...);
        } else {
          return c10::impl::PopResult<Result>::call(stack);
        }
      }
    }
    HostCall call(traits_of_typed<Op>());
    std::tuple<Taken<Arguments>...> taken{Taken<Arguments>(call, arguments, static_cast<int>(Index))...};
    if constexpr (std::is_same_v<Result, at::Tensor&>) {
      execute(call, std::get<Index>(taken)...);
      call.follow_written();
      call.finish();
      return written_argument(std::forward<Arguments>(arguments)...);
    } else {
      Result result = give_after(call, execute(call, std::get<Index>(taken)...));
      call.finish();
      return result;
    }
  }

  static const c10::OperatorHandle& handle() {
    static const c10::OperatorHandle op = c10::Dispatcher::singleton().findSchemaOrThrow(Op::name, Op::overload_name);
    return op;
  }

  template <typename Given>
  static Result give_after(HostCall& call, Given&& result) {
    call.follow_written();
    return give(call, std::move(result));
  }

  template <typename... Holders>
  static Result execute(HostCall& call, Holders&... holders) {
    HostCall::Running running(call);
    if (C10_UNLIKELY(call.needs_full_dispatch())) return Op::call(holders.get()...);
    return Op::redispatch(c10::DispatchKeySet(c10::DispatchKey::CPU), holders.get()...);
  }
};

template <typename Op>
void register_typed(torch::Library& library) {
  std::string name = std::string(Op::name).substr(6);  // without "aten::"
  if (Op::overload_name[0] != '\0') name += std::string(".") + Op::overload_name;
  library.impl(name.c_str(),
               torch::CppFunction::makeFromUnboxedFunction(TORCH_FN((&TypedKernel<Op, typename Op::schema>::call))));
}

}  // namespace opentrn::device
