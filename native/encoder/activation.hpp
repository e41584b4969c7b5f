#pragma once

namespace ridgeline {

enum class Activation { none, relu, gelu, tanh }; // tanh: gelu by its tanh formula

} // namespace ridgeline
