// Errors of the virtual core. The Python binding turns each category into its class of opentrn.errors.
#pragma once
#include <stdexcept>
#include <string>

namespace core {

enum class Category {
  configuration,
  unsupported,
  unimplemented,
  undefined_behaviour,
  out_of_bounds,
  capacity,
  corrupt_file
};

struct Error : std::runtime_error {
  Category category;
  std::string where, cure;
  Error(Category c, const std::string& cause, std::string place = "", std::string what_to_do = "")
      : std::runtime_error(cause), category(c), where(std::move(place)), cure(std::move(what_to_do)) {}
};

[[noreturn]] inline void fail(Category c, const std::string& cause, const std::string& cure = "") {
  throw Error(c, cause, "", cure);
}

}  // namespace core
