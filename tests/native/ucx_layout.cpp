// Compares the declarations of transport/ucx_api.hpp with the headers of UCX; it only has to compile.
#include <ucp/api/ucp.h>

#include "transport/ucx_api.hpp"

namespace ours = ridgeline::ucx;

#define SAME(our_type, our_field, their_type, their_field)                                                                    \
  static_assert(offsetof(ours::our_type, our_field) == offsetof(their_type, their_field) &&                                   \
                sizeof(ours::our_type::our_field) == sizeof(their_type::their_field))

SAME(Parameters, features, ucp_params_t, features);
SAME(Parameters, request_size, ucp_params_t, request_size);
SAME(Parameters, name, ucp_params_t, name);
SAME(WorkerParameters, thread_mode, ucp_worker_params_t, thread_mode);
SAME(WorkerParameters, cpu_mask, ucp_worker_params_t, cpu_mask);
SAME(WorkerParameters, events, ucp_worker_params_t, events);
SAME(WorkerParameters, flags, ucp_worker_params_t, flags);
SAME(EndpointParameters, address, ucp_ep_params_t, address);
SAME(EndpointParameters, error_mode, ucp_ep_params_t, err_mode);
SAME(EndpointParameters, error_handler, ucp_ep_params_t, err_handler);
SAME(EndpointParameters, flags, ucp_ep_params_t, flags);
SAME(ErrorHandler, argument, ucp_err_handler_t, arg);
SAME(RequestParameters, mask, ucp_request_param_t, op_attr_mask);
SAME(RequestParameters, flags, ucp_request_param_t, flags);
SAME(RequestParameters, callback, ucp_request_param_t, cb);
SAME(RequestParameters, datatype, ucp_request_param_t, datatype);
SAME(RequestParameters, user_data, ucp_request_param_t, user_data);
SAME(MessageParameters, attributes, ucp_am_recv_param_t, recv_attr);
SAME(HandlerParameters, id, ucp_am_handler_param_t, id);
SAME(HandlerParameters, callback, ucp_am_handler_param_t, cb);
SAME(HandlerParameters, argument, ucp_am_handler_param_t, arg);

static_assert(sizeof(ours::Status) == sizeof(ucs_status_t));
static_assert(ours::kBusy == UCS_ERR_BUSY && ours::kInProgress == UCS_INPROGRESS);
static_assert(int(ours::ThreadMode::serialized) == UCS_THREAD_MODE_SERIALIZED);
static_assert(ours::kFeatureAm == UCP_FEATURE_AM && ours::kFeatureWakeup == UCP_FEATURE_WAKEUP);
static_assert(ours::kEpAddress == UCP_EP_PARAM_FIELD_REMOTE_ADDRESS && ours::kEpErrorMode == UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE &&
              ours::kEpErrorHandler == UCP_EP_PARAM_FIELD_ERR_HANDLER);
static_assert(ours::EndpointParameters{}.error_mode == UCP_ERR_HANDLING_MODE_PEER);
static_assert(ours::kCallback == UCP_OP_ATTR_FIELD_CALLBACK && ours::kUserData == UCP_OP_ATTR_FIELD_USER_DATA && ours::kFlags == UCP_OP_ATTR_FIELD_FLAGS);
static_assert(ours::kCloseByForce == UCP_EP_CLOSE_FLAG_FORCE);
static_assert(ours::kIsRendezvous == UCP_AM_RECV_ATTR_FLAG_RNDV);
static_assert(ours::HandlerParameters{}.field_mask ==
              (UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG));
