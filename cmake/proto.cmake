# Defines tt_proto, the library that protoc and its gRPC plugin generate from
# proto/teletensor/v1/*.proto and from gRPC's protocol for reflection. Its headers are included as
# "teletensor/v1/session.pb.h" and "teletensor/v1/session.grpc.pb.h".
file(GLOB protos CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/proto/teletensor/v1/*.proto"
     "${CMAKE_SOURCE_DIR}/proto/grpc/reflection/v1alpha/*.proto")
if(NOT protos)
  add_library(tt_proto INTERFACE)
  return()
endif()
set(generated "${CMAKE_BINARY_DIR}/generated")
file(MAKE_DIRECTORY "${generated}")
set(outputs)
foreach(proto ${protos})
  file(RELATIVE_PATH stem "${CMAKE_SOURCE_DIR}/proto" "${proto}")
  string(REGEX REPLACE "\\.proto$" "" stem "${stem}")
  set(base "${generated}/${stem}")
  set(files "${base}.pb.cc" "${base}.pb.h" "${base}.grpc.pb.cc" "${base}.grpc.pb.h")
  add_custom_command(
    OUTPUT ${files}
    COMMAND protobuf::protoc "--proto_path=${CMAKE_SOURCE_DIR}/proto" "--cpp_out=${generated}"
            "--grpc_out=${generated}" "--plugin=protoc-gen-grpc=$<TARGET_FILE:gRPC::grpc_cpp_plugin>"
            "${proto}"
    DEPENDS ${protos}
    VERBATIM)
  list(APPEND outputs ${files})
  if(TELETENSOR_TOGETHER)
    set_source_files_properties("${base}.grpc.pb.cc" PROPERTIES HEADER_FILE_ONLY ON)
    list(APPEND services "${stem}.grpc.pb.cc")
  endif()
endforeach()
tt_together(services tt_proto 8 ${services})
add_library(tt_proto STATIC ${outputs} ${services})
target_include_directories(tt_proto SYSTEM PUBLIC "${generated}")
target_compile_features(tt_proto PUBLIC cxx_std_20)
target_compile_options(tt_proto PRIVATE -w)
target_link_libraries(tt_proto PUBLIC gRPC::grpc++ protobuf::libprotobuf)
