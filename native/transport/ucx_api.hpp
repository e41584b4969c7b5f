// The part of UCX's interface (libucp, https://openucx.org) that ucx.cpp uses, and its loader. A build needs no UCX: the
// library is opened when a communicator asks for it. UCX adds fields to the end of its structures only, and reads those that
// `field_mask` names, so these declarations fit every version 1.x from 1.11 on. tests/native/ucx_layout.cpp compares
// them with the headers of UCX.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace ridgeline::ucx {

using Status = std::int8_t; // ucs_status_t is packed
constexpr Status kOk = 0, kInProgress = 1, kBusy = -15;
constexpr unsigned kMajor = 1, kLeastMinor = 11;

constexpr std::uint64_t kFeatureWakeup = 1 << 4, kFeatureAm = 1 << 6;
struct Parameters { // ucp_params_t
  std::uint64_t field_mask = 1;
  std::uint64_t features = 0;
  std::size_t request_size = 0;
  void (*request_init)(void *) = nullptr;
  void (*request_cleanup)(void *) = nullptr;
  std::uint64_t tag_sender_mask = 0;
  int mt_workers_shared = 0;
  std::size_t estimated_num_eps = 0, estimated_num_ppn = 0;
  const char *name = nullptr;
};

enum class ThreadMode : int { single, serialized, multi };
struct WorkerParameters { // ucp_worker_params_t
  std::uint64_t field_mask = 1;
  ThreadMode thread_mode = ThreadMode::serialized;
  unsigned long cpu_mask[16] = {};
  unsigned events = 0;
  void *user_data = nullptr;
  int event_fd = -1;
  std::uint64_t flags = 0;
  const char *name = nullptr;
};

struct ErrorHandler {
  void (*call)(void *argument, void *endpoint, Status status);
  void *argument;
};
constexpr std::uint64_t kEpAddress = 1, kEpErrorMode = 2, kEpErrorHandler = 4;
struct EndpointParameters { // ucp_ep_params_t
  std::uint64_t field_mask = kEpAddress | kEpErrorMode | kEpErrorHandler;
  const void *address = nullptr;
  int error_mode = 1; // of the peer
  ErrorHandler error_handler{};
  void *user_data = nullptr;
  unsigned flags = 0;
};

constexpr std::uint32_t kCallback = 2, kUserData = 4, kFlags = 16;
constexpr std::uint32_t kCloseByForce = 1; // in `flags` of a close
struct RequestParameters { // ucp_request_param_t
  std::uint32_t mask = 0;
  std::uint32_t flags = 0;
  void *request = nullptr;
  union {
    void (*sent)(void *request, Status status, void *user_data);
    void (*received)(void *request, Status status, std::size_t length, void *user_data);
  } callback{nullptr};
  std::uint64_t datatype = 0;
  void *user_data = nullptr;
  void *reply_buffer = nullptr;
  int memory_type = 0;
  void *receive_info = nullptr;
  void *memory_handle = nullptr;
};

constexpr std::uint64_t kIsRendezvous = 1 << 17; // in `attributes`: the data has not been sent yet
struct MessageParameters { // ucp_am_recv_param_t
  std::uint64_t attributes;
  void *reply_endpoint;
};
using MessageCallback = Status (*)(void *argument, const void *header, std::size_t header_length, void *data, std::size_t length,
                                   const MessageParameters *parameters);
struct HandlerParameters { // ucp_am_handler_param_t
  std::uint64_t field_mask = 1 | 4 | 8;
  unsigned id = 0;
  std::uint32_t flags = 0;
  MessageCallback callback = nullptr;
  void *argument = nullptr;
};

inline bool is_error(const void *status) { return reinterpret_cast<std::uintptr_t>(status) >= std::uintptr_t(-100); }
inline bool is_request(const void *status) { return status && !is_error(status); }
inline Status read_status(const void *status) { return Status(reinterpret_cast<std::intptr_t>(status)); }

struct Library {
  void (*get_version)(unsigned *, unsigned *, unsigned *);
  Status (*config_read)(const char *, const char *, void **);
  Status (*config_modify)(void *, const char *, const char *);
  void (*config_release)(void *);
  Status (*init_version)(unsigned, unsigned, const Parameters *, const void *, void **);
  void (*cleanup)(void *);
  Status (*worker_create)(void *, const WorkerParameters *, void **);
  void (*worker_destroy)(void *);
  Status (*worker_get_address)(void *, void **, std::size_t *);
  void (*worker_release_address)(void *, void *);
  unsigned (*worker_progress)(void *);
  Status (*worker_get_efd)(void *, int *);
  Status (*worker_arm)(void *);
  Status (*worker_set_am_recv_handler)(void *, const HandlerParameters *);
  Status (*ep_create)(void *, const EndpointParameters *, void **);
  void *(*ep_close_nbx)(void *, const RequestParameters *);
  void *(*am_send_nbx)(void *, unsigned, const void *, std::size_t, const void *, std::size_t, const RequestParameters *);
  void *(*am_recv_data_nbx)(void *, void *, void *, std::size_t, const RequestParameters *);
  void (*request_free)(void *);
  Status (*request_check_status)(void *);

  std::string problem; // why it cannot be used; "": it can
  unsigned major = 0, minor = 0, release = 0;
};

// The library, opened at the first call.
const Library &load_library();

} // namespace ridgeline::ucx
