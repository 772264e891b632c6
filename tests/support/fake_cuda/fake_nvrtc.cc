// The functions of NVRTC, and the loading of the kernels that it compiles.
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "fake.h"

#define EXPORT extern "C" __attribute__((visibility("default"))) int

extern char** environ;

namespace fake {

static const std::string& folder() {
  struct Folder {
    std::string path = (std::filesystem::temp_directory_path() / "fake-cuda-XXXXXX").string();
    Folder() {
      if (mkdtemp(path.data()) == nullptr) std::abort();
    }
    ~Folder() {
      std::error_code ignored;
      std::filesystem::remove_all(path, ignored);
    }
  };
  static const Folder made;
  return made.path;
}

struct Library {
  void* handle = nullptr;
  ~Library() {
    if (handle != nullptr) dlclose(handle);
  }
};

std::shared_ptr<Library> load(const void* image, int* error) {
  *error = kInvalidImage;
  Elf64_Ehdr head;
  std::memcpy(&head, image, sizeof head);
  if (std::memcmp(head.e_ident, ELFMAG, SELFMAG) != 0) return nullptr;
  const std::size_t bytes = head.e_shoff + std::size_t{head.e_shnum} * head.e_shentsize;
  // A unique path: dlopen treats equal paths as the same library.
  static std::atomic<int> counter{0};
  const std::string path = folder() + "/loaded-" + std::to_string(counter.fetch_add(1)) + ".so";
  std::ofstream(path, std::ios::binary)
      .write(static_cast<const char*>(image), static_cast<std::streamsize>(bytes));
  auto made = std::make_shared<Library>();
  made->handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  std::remove(path.c_str());
  if (made->handle == nullptr) {
    std::fprintf(stderr, "fake driver: %s\n", dlerror());
    return nullptr;
  }
  *error = kSuccess;
  return made;
}

void* symbol(const Library& library, const std::string& name) {
  return dlsym(library.handle, name.c_str());
}

}  // namespace fake

namespace {

struct Program {
  std::string text, log, code;
};

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Runs the compiler and returns its exit status; its output is in `log`.
int run(const std::vector<std::string>& words, const std::string& log) {
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 2, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  pid_t pid = 0;
  int status = posix_spawnp(&pid, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (status != 0 || waitpid(pid, &status, 0) != pid) return -1;
  return status;
}

// Replaces a kernel by one of the same name that does nothing.
std::string emptied(const std::string& text) {
  const std::size_t end = text.rfind("(const Params p)"), start = text.rfind(' ', end) + 1;
  const std::string name = text.substr(start, end - start);
  return "struct Params {};\nvoid " + name + "(const Params) {}\nTT_KERNEL(" + name + ")\n";
}

int compile(Program& program) {
  static std::atomic<int> counter{0};
  if (!fake::config().compiles) {
    program.log = "this compiler compiles nothing";
    return 6;
  }
  const std::string& emulation = fake::config().emulation;
  const std::string text = "#include \"" + emulation + "\"\n" +
                           (fake::config().empty ? emptied(program.text) : program.text);
  std::ostringstream name;
  name << std::hex << std::hash<std::string>()(text + read_file(emulation));
  const std::string kept =
      fake::config().cache.empty() ? "" : fake::config().cache + "/" + name.str() + ".so";
  if (!kept.empty() && !(program.code = read_file(kept)).empty()) return 0;
  const std::string base = fake::folder() + "/" + std::to_string(counter.fetch_add(1));
  std::ofstream(base + ".cc") << text;
  const int status =
      run({TT_FAKE_COMPILER, "-std=c++20", "-O1", "-ffp-contract=off", "-w", "-fPIC", "-shared",
           "-fvisibility=hidden", "-fno-gnu-unique", "-o", base + ".so", base + ".cc"},
          base + ".log");
  program.log = read_file(base + ".log");
  program.code = read_file(base + ".so");
  if (status != 0 || program.code.empty()) return 6;
  if (!kept.empty()) {
    std::error_code error;
    std::filesystem::create_directories(fake::config().cache, error);
    std::filesystem::copy_file(base + ".so", base + ".kept", error);
    std::filesystem::rename(base + ".kept", kept, error);
    if (error) {  // the cache is on another file system
      const std::string part = kept + "." + std::to_string(getpid()) + std::to_string(counter++);
      std::filesystem::copy_file(base + ".so", part, error);
      std::filesystem::rename(part, kept, error);
    }
  }
  for (const char* suffix : {".cc", ".so", ".log"}) std::remove((base + suffix).c_str());
  return 0;
}

}  // namespace

EXPORT nvrtcVersion(int* major, int* minor) {
  *major = fake::config().nvrtc_major;
  *minor = fake::config().nvrtc_minor;
  return 0;
}
EXPORT nvrtcGetNumSupportedArchs(int* count) {
  *count = 3;
  return 0;
}
EXPORT nvrtcGetSupportedArchs(int* archs) {
  archs[0] = 75;
  archs[1] = 80;
  archs[2] = 90;
  return 0;
}
EXPORT nvrtcCreateProgram(void** program, const char* text, const char*, int headers,
                          const char* const*, const char* const*) {
  if (headers != 0) return 3;
  *program = new Program{text, "", ""};
  return 0;
}
EXPORT nvrtcDestroyProgram(void** program) {
  delete static_cast<Program*>(*program);
  *program = nullptr;
  return 0;
}
EXPORT nvrtcCompileProgram(void* program, int count, const char* const* options) {
  bool architecture = false, contracts = true;
  for (int i = 0; i < count; ++i) {
    architecture = architecture || std::strncmp(options[i], "--gpu-architecture=", 19) == 0;
    contracts = contracts && std::strcmp(options[i], "--fmad=false") != 0;
  }
  return architecture && !contracts ? compile(*static_cast<Program*>(program)) : 5;
}
EXPORT nvrtcGetCUBINSize(void* program, std::size_t* bytes) {
  *bytes = static_cast<Program*>(program)->code.size();
  return 0;
}
EXPORT nvrtcGetCUBIN(void* program, char* code) {
  const std::string& made = static_cast<Program*>(program)->code;
  std::memcpy(code, made.data(), made.size());
  return 0;
}
EXPORT nvrtcGetPTXSize(void* program, std::size_t* bytes) {
  return nvrtcGetCUBINSize(program, bytes);
}
EXPORT nvrtcGetPTX(void* program, char* code) { return nvrtcGetCUBIN(program, code); }
EXPORT nvrtcGetProgramLogSize(void* program, std::size_t* bytes) {
  *bytes = static_cast<Program*>(program)->log.size() + 1;
  return 0;
}
EXPORT nvrtcGetProgramLog(void* program, char* log) {
  std::strcpy(log, static_cast<Program*>(program)->log.c_str());
  return 0;
}
