# cmake -DSOURCE=... -DOUT=... -P git_state.cmake: writes into OUT which commit SOURCE is at. Run by
# every build, because a commit does not configure again, and changes OUT only when that changed.
set(git git -c safe.directory=* -C ${SOURCE})  # a container's checkout may be somebody else's
execute_process(COMMAND ${git} rev-parse HEAD
  OUTPUT_VARIABLE sha OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed ERROR_QUIET)
set(dirty false)
if(failed)
  set(sha "")
else()
  execute_process(COMMAND ${git} diff --quiet HEAD RESULT_VARIABLE differs)
  if(differs)
    set(dirty true)
  endif()
endif()
file(CONFIGURE OUTPUT ${OUT} CONTENT [[
#include "src/session/build_info.h"

namespace lockstep {

const char kGitSha[] = "@sha@";
const bool kGitDirty = @dirty@;

}  // namespace lockstep
]] @ONLY)
