#!/usr/bin/env python3
"""No file of the product is over 800 lines, and no class or struct has over 30 data members.

A data member of C++ is one that each object has; in Python it is an attribute of self, or a field that the
class's body declares.

Usage: limits_test.py [--source DIR] [--self-test]
Exit code 1: something is over its limit; the lines name it.
"""

import argparse
import ast
import pathlib
import re
import sys
import tempfile

FOLDERS = ("common", "job", "programs", "proto", "python", "server", "tools", "worker")
TESTS = pathlib.PurePosixPath("python/tests")
SUFFIXES = {".h", ".cc", ".cu", ".cuh", ".py", ".proto"}
LINES_MAX = 800
MEMBERS_MAX = 30
NOISE = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\''
    r"|^[ \t]*#(?:\\\n|[^\n])*", re.DOTALL | re.MULTILINE)
LABEL = re.compile(r"^\s*(?:(?:public|private|protected)\s*:\s*)+")
CLASS = re.compile(r"^(?:template\s*<.*>\s*)?(?:class|struct|union)\b([^()=]*)$", re.DOTALL)
# None of these begins a data member.
OTHERS = re.compile(r"^(?:using|typedef|friend|static|template|enum|class \w+$|struct \w+$|extern)\b")


def inner(text):
    """Without what stands between angle brackets, and without macros that say what guards a member."""
    while True:
        shorter = re.sub(r"<[^<>]*>|\bABSL_\w+\([^()]*\)|\balignas\([^()]*\)|\[[^\[\]]*\]", "", text)
        if shorter == text:
            return text
        text = shorter


def is_function(statement):
    head = inner(statement).split("=", 1)[0]
    return "(" in head and not re.search(r"\(\s*\*", head) or "operator" in head


def members_in(statement):
    """How many data members a statement of a class's body declares."""
    statement = LABEL.sub("", statement).strip()
    if not statement or OTHERS.match(statement) or is_function(statement):
        return 0
    return 1 if "(" in statement else 1 + re.sub(r"\{[^{}]*\}", "", inner(statement)).count(",")


def classes_of_cpp(text):
    """Pairs of a class, with those that it is in, and how many data members it has."""
    text = NOISE.sub(lambda noise: '""' if noise.group().endswith('"') else " ", text)
    # Of each brace that is open: the class, if it is one's; members; the statement before it.
    scopes, statement, found = [("", 0, "")], "", []
    for part in re.split(r"([{};])", text):
        name, members, before = scopes[-1]
        if part == "{":
            head = LABEL.sub("", statement).strip()
            if found_class := CLASS.match(head):
                scopes.append((re.split(r"(?<!:):(?!:)", found_class.group(1))[0].strip() or "(unnamed)", 0, ""))
            else:
                # A function's body ends a statement, a namespace begins one; a member's initial value is a part of it.
                ends = head.startswith(("namespace", "extern", "enum")) or is_function(head)
                scopes.append(("", 0, "" if ends else statement))
            statement = ""
        elif part == "}" and len(scopes) > 1:
            scopes.pop()
            statement = before + ("{}" if before else "")
            if name:
                found.append(("::".join([scope for scope, _, _ in scopes if scope] + [name]), members))
        elif part == ";":
            scopes[-1] = (name, members + (members_in(statement) if name else 0), before)
            statement = ""
        else:
            statement += part
    return found


def classes_of_python(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef):
            fields = {field.target.id for field in node.body
                      if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)}
            for part in ast.walk(node):
                if (isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store)
                        and isinstance(part.value, ast.Name) and part.value.id == "self"):
                    fields.add(part.attr)
            yield node.name, len(fields)


def over_limits(source):
    """What is over a limit, as "FILE" or "FILE: CLASS", with how much it has and what is allowed."""
    found = {}
    for top in FOLDERS:
        for path in sorted((source / top).rglob("*")):
            name = path.relative_to(source)
            if path.suffix not in SUFFIXES or name.is_relative_to(TESTS):
                continue
            text = path.read_text()
            if (lines := text.count("\n")) > LINES_MAX:
                found[name.as_posix()] = (lines, f"lines; {LINES_MAX}")
            if path.suffix == ".proto":
                continue
            classes = classes_of_python if path.suffix == ".py" else classes_of_cpp
            for one, members in classes(text):
                if members > MEMBERS_MAX:
                    found[f"{name}: {one}"] = (members, f"data members; {MEMBERS_MAX}")
    return found


def problems(found):
    """A line for each of over_limits()."""
    return [f"{name} has {count} {what} are allowed: make parts of it" for name, (count, what) in found.items()]


def self_test():
    """Each rule finds what it is there for, and counts nothing else."""
    header = """
#include "a.h"
#define TWO \\
  int no; int more;
namespace a {
struct Plain { int x = 0; int y, z; };
// class Comment { int no; };
template <typename T>
class Big : public Plain {
 public:
  struct Options {
    std::map<int, std::string> map = {};
    std::function<void(int, int)> call = [](int a, int b) { return a; };
    void (*pointer)(int, int);
  };
  enum class Kind { kOne, kTwo };
  using Name = std::string;
  static constexpr int kMax = 3;
  explicit Big(int x) : x_(x), y_{2} { int local; Use(local); }
  Big(const Big&) = delete;
  bool operator==(const Big& other) const { return true; }
  std::pair<int, int> Both() const;
  friend class Other;
  class Inner;

 private:
  const char* text_ = "; int no;";
  std::vector<int> list_ ABSL_GUARDED_BY(mutex_) = {1, 2};
  int array_[3] = {};
  std::unique_ptr<Inner> inner_{nullptr};
};
enum Old { kA, kB };
int Function() { struct Local { int counted_too; }; return 0; }
class Big::Inner { int only_; };
}  // namespace a
"""
    assert classes_of_cpp(header) == [
        ("Plain", 3), ("Big::Options", 3), ("Big", 4), ("Local", 1), ("Big::Inner", 1)], classes_of_cpp(header)
    script = "class A:\n  field: int = 0\n  MAX = 3\n  def f(self):\n    self.x = self.y = 1\n    self.x += self.z\n"
    assert list(classes_of_python(script)) == [("A", 3)], list(classes_of_python(script))
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder)
        for name, text in {
            "server/many.h": "struct S {\n" + "int x;\n" * 31 + "};\n",
            "server/few.h": "struct S {\n" + "int x;\n" * 30 + "};\n",
            "tools/long.py": "pass\n" * 801,
            "python/tests/test_long.py": "pass\n" * 801,
        }.items():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_text(text)
        found = over_limits(source)
    assert found == {"server/many.h: S": (31, "data members; 30"), "tools/long.py": (801, "lines; 800")}, found
    assert problems(found) == [
        "server/many.h: S has 31 data members; 30 are allowed: make parts of it",
        "tools/long.py has 801 lines; 800 are allowed: make parts of it"], problems(found)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    parser.add_argument("--self-test", action="store_true", help="that the rules find what they are there for")
    arguments = parser.parse_args()
    if arguments.self_test:
        self_test()
        return 0
    lines = problems(over_limits(arguments.source))
    for line in lines:
        print(line, file=sys.stderr)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
