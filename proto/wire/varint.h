// Makes protobuf's varints and tags (engine/core/varint.h) available in this namespace.
#pragma once

#include "engine/core/varint.h"

namespace teletensor::wire {

using core::close_length;
using core::Cursor;
using core::kMaxLength;
using core::kMaxVarint;
using core::put_bytes;
using core::put_field;
using core::put_tag;
using core::put_varint;
using core::tag_of;
using core::unzigzag;
using core::varint_size;
using core::WireType;
using core::zigzag;

}  // namespace teletensor::wire
