// State of the process and its threads rather than of a session: the exit status, and the check
// that the module is imported once.
#include <cstdlib>

#include "bindings.h"

namespace teletensor::client {

namespace {

void fail(int status, void*) {
  // exit() inside an exit handler makes glibc continue with the remaining handlers and status 1.
  if (status == 0) std::exit(1);
}

}  // namespace

void check_first_import() {
  static bool imported = false;
  if (imported) {
    throw nb::import_error(
        "teletensor is imported a second time in this process, after its modules were removed from "
        "sys.modules; its native part can be there only once. Keep the modules, or start another "
        "process");
  }
  imported = true;
}

void bind_process(nb::module_& m) {
  m.def(
      "fail_at_exit",
      [] {
        static const int registered = on_exit(fail, nullptr);
        (void)registered;
      },
      "Makes the process end with status 1 instead of 0.");
}

}  // namespace teletensor::client
