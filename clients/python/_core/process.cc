// What belongs to the process and its threads rather than to a session: its exit status.
#include <cstdlib>

#include "bindings.h"

namespace teletensor::client {

namespace {

void fail(int status, void*) {
  if (status == 0) std::exit(1);  // glibc goes on with the handlers that are left
}

}  // namespace

void bind_process(nb::module_& m) {
  m.def(
      "fail_at_exit",
      [] {
        static const int registered = on_exit(fail, nullptr);
        (void)registered;
      },
      "The process ends with status 1 where it would end with 0.");
}

}  // namespace teletensor::client
