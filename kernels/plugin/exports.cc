#include "kernels/plugin/exports.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cstdint>

namespace lockstep {
namespace {

// The dynamic linker has made addresses of the offsets in these entries.
struct Tables {
  const ElfW(Sym) * symbols = nullptr;
  const char* names = nullptr;
  const uint32_t* hash = nullptr;
};

Tables tables_of(const link_map& map) {
  Tables tables;
  for (const ElfW(Dyn)* entry = map.l_ld; entry->d_tag != DT_NULL; ++entry) {
    const auto* at = reinterpret_cast<const void*>(entry->d_un.d_ptr);
    if (entry->d_tag == DT_SYMTAB) tables.symbols = static_cast<const ElfW(Sym)*>(at);
    if (entry->d_tag == DT_STRTAB) tables.names = static_cast<const char*>(at);
    if (entry->d_tag == DT_GNU_HASH) tables.hash = static_cast<const uint32_t*>(at);
  }
  return tables;
}

}  // namespace

std::vector<std::string> exports_of(void* library) {
  const link_map* map = nullptr;
  if (dlinfo(library, RTLD_DI_LINKMAP, &map) != 0) return {};
  const Tables tables = tables_of(*map);
  if (!tables.symbols || !tables.names || !tables.hash) return {};
  // Header: buckets, the first symbol that is exported, words of the filter, its shift. A bucket is
  // the first of its symbols; the lowest bit of a hash in the chain ends it.
  const uint32_t buckets = tables.hash[0], first = tables.hash[1], filter = tables.hash[2];
  const uint32_t* bucket = tables.hash + 4 + filter * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
  const uint32_t* chain = bucket + buckets;
  uint32_t last = buckets == 0 ? 0 : *std::max_element(bucket, bucket + buckets);
  if (last < first) return {};
  // Symbols of a bucket stand together: the last bucket's chain ends with the last symbol.
  while ((chain[last - first] & 1) == 0) ++last;
  std::vector<std::string> names;
  for (uint32_t i = first; i <= last; ++i)
    names.emplace_back(tables.names + tables.symbols[i].st_name);
  return names;
}

}  // namespace lockstep
