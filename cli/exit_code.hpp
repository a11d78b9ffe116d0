// How the program ends.
#pragma once

namespace flashmoe::cli {

enum ExitCode : int {
  kRight = 0,
  kVerificationFailed = 1, ///< wrong results, or `verify` could measure none
  kBadInput = 2,           ///< flags, files, problems the layer does not take, not enough memory
  kFault = 3,              ///< a timeout or another fault during the run
  kDeviceUnavailable = 4,  ///< the backend asked for cannot run here
  kInterrupted = 130,      ///< Ctrl-C, as shells tell it
};

}  // namespace flashmoe::cli
