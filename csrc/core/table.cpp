#include "core/table.h"

#include <cmath>

namespace core {

const std::array<const char*, opcode_count> opcode_names = {
#define X(name) #name,
    CORE_INSTRUCTIONS(X)
#undef X
};

namespace {
std::array<Definition, opcode_count> definitions;
std::unordered_map<std::string, Chip> chips;
enum Operation {
  number,
  variable,
  add,
  subtract,
  multiply,
  divide,
  modulo,
  less,
  less_equal,
  greater,
  greater_equal,
  equal,
  not_equal,
  both,
  either,
  invert,
  negate,
  minimum,
  maximum,
  ceiling,
  flooring
};
}  // namespace

Definition& definition(Opcode op) { return definitions[int(op)]; }

int opcode_from_name(const std::string& name) {
  static const auto index = [] {
    std::unordered_map<std::string, int> m;
    for (int i = 0; i < opcode_count; ++i) m[opcode_names[i]] = i;
    return m;
  }();
  auto it = index.find(name);
  return it == index.end() ? -1 : it->second;
}

int Definition::find(const std::string& parameter) const {
  for (std::size_t i = 0; i < parameters.size(); ++i)
    if (parameters[i].name == parameter) return int(i);
  return -1;
}

double Chip::operator[](const std::string& key) const {
  auto it = values.find(key);
  if (it == values.end())
    fail(Category::configuration, "chip '" + name + "' has no constant '" + key + "'",
         "add it to data/core_timing.toml");
  return it->second;
}

void define_chip(const Chip& chip) { chips[chip.name] = chip; }

const Chip& find_chip(const std::string& name) {
  auto it = chips.find(name);
  if (it == chips.end())
    fail(Category::configuration, "no chip named '" + name + "'", "use trn1, inf2, trn2, trn3 or gen2, gen3, gen4");
  return it->second;
}

struct FormulaParser {
  Formula& f;
  const std::string& s;
  std::size_t at = 0;
  void space() {
    while (at < s.size() && s[at] == ' ') ++at;
  }
  bool take(const std::string& token) {
    space();
    if (s.compare(at, token.size(), token) != 0) return false;
    const bool word = std::isalpha(u8(token[0]));
    if (word && at + token.size() < s.size() &&
        (std::isalnum(u8(s[at + token.size()])) || s[at + token.size()] == '_' || s[at + token.size()] == '.'))
      return false;
    at += token.size();
    return true;
  }
  int node(int op, int a = -1, int b = -1, double v = 0) {
    f.nodes_.push_back({op, v, a, b, "", ""});
    return int(f.nodes_.size()) - 1;
  }
  [[noreturn]] void bad() {
    fail(Category::configuration, "cannot read the formula '" + s + "' at '" + s.substr(at) + "'",
         "correct data/instructions.toml");
  }
  int disjunction() {
    int a = conjunction();
    while (take("or")) a = node(either, a, conjunction());
    return a;
  }
  int conjunction() {
    int a = inversion();
    while (take("and")) a = node(both, a, inversion());
    return a;
  }
  int inversion() { return take("not") ? node(invert, inversion()) : comparison(); }
  int comparison() {
    const int a = sum();
    static const std::pair<const char*, int> operators[] = {{"<=", less_equal}, {">=", greater_equal}, {"==", equal},
                                                            {"!=", not_equal},  {"<", less},           {">", greater}};
    for (auto [token, op] : operators)
      if (take(token)) return node(op, a, sum());
    return a;
  }
  int sum() {
    int a = product();
    for (;;) {
      if (take("+"))
        a = node(add, a, product());
      else if (take("-"))
        a = node(subtract, a, product());
      else
        return a;
    }
  }
  int product() {
    int a = atom();
    for (;;) {
      if (take("*"))
        a = node(multiply, a, atom());
      else if (take("/"))
        a = node(divide, a, atom());
      else if (take("%"))
        a = node(modulo, a, atom());
      else
        return a;
    }
  }
  int call(int op, bool pair) {
    int a = disjunction();
    while (pair && take(",")) a = node(op, a, disjunction());
    if (!take(")")) bad();
    return pair ? a : node(op, a);
  }
  int atom() {
    space();
    if (take("(")) {
      int a = disjunction();
      if (!take(")")) bad();
      return a;
    }
    if (take("-")) return node(negate, atom());
    if (at < s.size() && (std::isdigit(u8(s[at])))) {
      std::size_t used;
      const double v = std::stod(s.substr(at), &used);
      at += used;
      return node(number, -1, -1, v);
    }
    std::size_t end = at;
    while (end < s.size() && (std::isalnum(u8(s[end])) || s[end] == '_')) ++end;
    if (end == at) bad();
    const std::string word = s.substr(at, end - at);
    at = end;
    if (take("(")) {
      if (word == "min") return call(minimum, true);
      if (word == "max") return call(maximum, true);
      if (word == "ceil") return call(ceiling, false);
      if (word == "floor") return call(flooring, false);
      bad();
    }
    std::string operand;
    if (at < s.size() && s[at] == '.') {
      end = ++at;
      while (end < s.size() && (std::isalnum(u8(s[end])) || s[end] == '_')) ++end;
      operand = s.substr(at, end - at);
      at = end;
    }
    const int n = node(variable);
    f.nodes_[n].property = word;
    f.nodes_[n].operand = operand;
    return n;
  }
};

Formula::Formula(const std::string& text) : text_(text) {
  FormulaParser parser{*this, text_};
  root_ = parser.disjunction();
  parser.space();
  if (parser.at != text_.size()) parser.bad();
}

double Formula::run(int id, const std::function<double(const std::string&, const std::string&)>& variable_value) const {
  const Node& n = nodes_[id];
  auto a = [&] { return run(n.a, variable_value); };
  auto b = [&] { return run(n.b, variable_value); };
  switch (n.op) {
    case number:
      return n.value;
    case variable:
      return variable_value(n.property, n.operand);
    case add:
      return a() + b();
    case subtract:
      return a() - b();
    case multiply:
      return a() * b();
    case divide:
      return a() / b();
    case modulo:
      return std::fmod(a(), b());
    case less:
      return a() < b();
    case less_equal:
      return a() <= b();
    case greater:
      return a() > b();
    case greater_equal:
      return a() >= b();
    case equal:
      return a() == b();
    case not_equal:
      return a() != b();
    case both:
      return a() != 0 && b() != 0;
    case either:
      return a() != 0 || b() != 0;
    case invert:
      return a() == 0;
    case negate:
      return -a();
    case minimum:
      return std::min(a(), b());
    case maximum:
      return std::max(a(), b());
    case ceiling:
      return std::ceil(a());
    default:
      return std::floor(a());
  }
}

double Formula::evaluate(const std::function<double(const std::string&, const std::string&)>& v) const {
  return root_ < 0 ? 1 : run(root_, v);
}

}  // namespace core
