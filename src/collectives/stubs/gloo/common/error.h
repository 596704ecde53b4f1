// The names of Gloo that c10d's header has and its wheel has no headers for (context.h).
#pragma once
