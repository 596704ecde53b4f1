// HDF5's errors come as negative numbers and a stack of its own; each call here is checked where it
// stands and becomes an Error with the file's path. HDF5 prints nothing of its own; ids other than
// the file's belong to a Hdf5Id, which closes them.
#include "traces/hdf5_file.h"

#include <hdf5.h>
#include <hdf5_hl.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/files/disk.h"
#include "traces/hdf5_parts.h"
#include "traces/seal.h"

namespace lockstep {
namespace {

using Id = Hdf5Id;

// Types are spelt out by width and byte order, so that a file is the same on every machine.
template <typename T>
Id type_of() {
  if constexpr (std::is_same_v<T, int32_t>) return Id(H5Tcopy(H5T_STD_I32LE));
  if constexpr (std::is_same_v<T, int64_t>) return Id(H5Tcopy(H5T_STD_I64LE));
  if constexpr (std::is_same_v<T, uint8_t>) return Id(H5Tcopy(H5T_STD_U8LE));
  if constexpr (std::is_same_v<T, uint32_t>) return Id(H5Tcopy(H5T_STD_U32LE));
  if constexpr (std::is_same_v<T, uint64_t>) return Id(H5Tcopy(H5T_STD_U64LE));
  if constexpr (std::is_same_v<T, double>) return Id(H5Tcopy(H5T_IEEE_F64LE));
  if constexpr (std::is_same_v<T, std::string>) return hdf5_text_type();
}

// A dataspace of those extents; of one axis and no element where a column is empty.
Id space_of(std::span<const int64_t> dims) {
  const std::vector<hsize_t> extents(dims.begin(), dims.end());
  return Id(H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr));
}

// HDF5 takes texts of variable length as pointers, which borrow. The texts must live until HDF5 has
// written them, and end at their first NUL there.
std::vector<const char*> pointers_of(const std::vector<std::string>& texts) {
  std::vector<const char*> pointers;
  for (const std::string& text : texts) pointers.push_back(text.c_str());
  return pointers;
}

// A group or dataset, to read or give it attributes.
Id opened(hid_t file, const std::string& object) {
  return Id(H5Oopen(file, object.c_str(), H5P_DEFAULT));
}

// Attributes are made, never replaced: a name that is there already is trouble.
bool set_attribute(hid_t owner, const char* name, hid_t type, hid_t space, const void* value) {
  const Id attribute(H5Acreate2(owner, name, type, space, H5P_DEFAULT, H5P_DEFAULT));
  return attribute >= 0 && H5Awrite(attribute, type, value) >= 0;
}

// To be called before the first call of the library, and as often as one likes. HDF5 keeps silent,
// and leaves a file that could not be closed (a full disk) alone at exit, where it would try again
// for ever.
void prepare_hdf5() {
  static const bool once = [] {
    H5dont_atexit();
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
    H5PLset_loading_state(0);  // a file's filters would load code from HDF5_PLUGIN_PATH
    return true;
  }();
  (void)once;
}

// The description of the innermost error on HDF5's stack, which is where it began.
std::string hdf5_cause() {
  std::string text = "HDF5 says no more";
  H5Ewalk2(
      H5E_DEFAULT, H5E_WALK_UPWARD,
      [](unsigned depth, const H5E_error2_t* error, void* to) -> herr_t {
        if (depth == 0 && error->desc != nullptr) *static_cast<std::string*>(to) = error->desc;
        return 0;
      },
      &text);
  return text;
}

// Reads a text of a fixed length, as numpy's bytes are.
bool get_fixed_text(int64_t attribute, int64_t stored, std::string& value) {
  constexpr size_t kMost = size_t{1} << 16;  // as HDF5 has room for
  value.assign(std::min(H5Tget_size(stored), kMost), '\0');
  if (H5Tget_size(stored) > kMost || H5Aread(attribute, stored, value.data()) < 0) return false;
  value.resize(std::min(value.find('\0'), value.size()));
  return true;
}

// Reads a text; false when the attribute is none.
bool get_text(int64_t attribute, std::string& value) {
  const Hdf5Id stored(H5Aget_type(attribute)), space(H5Aget_space(attribute));
  if (H5Tget_class(stored) != H5T_STRING || H5Sget_simple_extent_npoints(space) != 1) return false;
  if (H5Tis_variable_str(stored) <= 0) return get_fixed_text(attribute, stored, value);
  char* text = nullptr;
  const Hdf5Id as = hdf5_text_type();
  H5Tset_cset(as, H5Tget_cset(stored));  // ASCII is not converted to UTF-8
  if (H5Aread(attribute, as, &text) < 0) return false;
  value = text ? text : "";
  H5free_memory(text);
  return true;
}

}  // namespace

void Hdf5File::trouble(const std::string& what) const {
  const std::string reason = hdf5_cause();
  if (is_out_of_room(reason)) fail_out_of_room(path_, reason);
  fail("{}: {} ({}): the file is damaged or cannot be reached", path_, what, reason);
}

Hdf5File Hdf5File::create(const std::string& path) {
  prepare_hdf5();
  const Id access(H5Pcreate(H5P_FILE_ACCESS));
  // These bounds fix the form of the file, whichever later version of the library writes it.
  H5Pset_libver_bounds(access, H5F_LIBVER_V110, H5F_LIBVER_V110);
  // Closing the file closes what is open in it, or a failed write would keep it open.
  H5Pset_fclose_degree(access, H5F_CLOSE_STRONG);
  // Closing a dataset leaves nothing to be written: nobody would be told that it failed.
  H5Pset_sieve_buf_size(access, 0);
  // Columns never fill the gaps between tensors, where the seal would not cover them.
  H5Pset_small_data_block_size(access, 0);
  const Id layout(H5Pcreate(H5P_FILE_CREATE));
  H5Pset_userblock(layout, kSealBytes);
  const hid_t id = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, layout, access);
  if (id < 0 && is_out_of_room(hdf5_cause())) fail_out_of_room(path, hdf5_cause());
  check(id >= 0,
        "{}: a new file was wanted there, but it cannot be made ({}): choose another --trace", path,
        hdf5_cause());
  Hdf5File file(id, path);
  file.kept_ = std::make_unique<Kept>();
  file.written_ = std::make_shared<SharedFile>(path);
  return file;
}

Hdf5File Hdf5File::open(const std::string& path) {
  check_seal(path);
  return open_unsealed(path);
}

// Its seal is not looked at: bare traces have none, and others are checked before (seal.cc).
Hdf5File Hdf5File::open_unsealed(const std::string& path) {
  prepare_hdf5();
  const Id access(H5Pcreate(H5P_FILE_ACCESS));
  H5Pset_fclose_degree(access, H5F_CLOSE_STRONG);
  const hid_t id = H5Fopen(path.c_str(), H5F_ACC_RDONLY, access);
  check(id >= 0, "{}: cannot be opened ({}): it was cut off or is damaged", path, hdf5_cause());
  Hdf5File file(id, path);
  hsize_t size = 0;
  if (H5Fget_filesize(id, &size) < 0) file.trouble("its size is not known");
  file.bytes_ = size;
  return file;
}

Hdf5File::Hdf5File(int64_t id, const std::string& path)
    : id_(id), seal_from_(kSealBytes), path_(path) {}

Hdf5File::Hdf5File(Hdf5File&& other) noexcept
    : id_(std::exchange(other.id_, -1)),
      kept_(std::move(other.kept_)),
      written_(std::move(other.written_)),
      seal_from_(other.seal_from_),
      bytes_(other.bytes_),
      path_(other.path_) {}

// Types and properties are the same for thousands of tensors and made once. The group that the last
// tensor lies in stays open: a name is then looked up in that group alone.
struct Hdf5File::Kept {
  Kept() {
    H5Pset_create_intermediate_group(links, 1);
    // A layer's tensors are few, and few links are best in the header of their group.
    H5Pset_link_phase_change(groups, kMostLinks, kMostLinks / 2);
    // Room at once and no filling: the bytes are written past HDF5.
    H5Pset_alloc_time(datasets, H5D_ALLOC_TIME_EARLY);
    H5Pset_fill_time(datasets, H5D_FILL_TIME_NEVER);
  }

  // Opens the group of that path, or makes it and those above it.
  hid_t group_of(hid_t file, const std::string& path) {
    if (group && path == group_path) return *group;
    group_path.clear();
    group.emplace(H5Gopen2(file, path.c_str(), H5P_DEFAULT));
    if (*group < 0) group.emplace(H5Gcreate2(file, path.c_str(), links, groups, H5P_DEFAULT));
    if (*group >= 0) group_path = path;
    return *group;
  }

  static constexpr unsigned kMostLinks = 64;
  Id text = hdf5_text_type(), scalar{H5Screate(H5S_SCALAR)};
  Id links{H5Pcreate(H5P_LINK_CREATE)}, groups{H5Pcreate(H5P_GROUP_CREATE)},
      datasets{H5Pcreate(H5P_DATASET_CREATE)};
  std::string group_path;
  std::optional<Id> group;
};

Hdf5File::~Hdf5File() {
  kept_.reset();
  if (id_ >= 0) H5Fclose(id_);
}

// The seal covers what is written from here on; tensors before it have hashes of their own in the
// index.
void Hdf5File::seal_from_here() {
  hsize_t size = 0;
  if (H5Fflush(id_, H5F_SCOPE_LOCAL) < 0 || H5Fget_filesize(id_, &size) < 0)
    trouble("cannot be written");
  seal_from_ = size;
}

void Hdf5File::close() {
  kept_.reset();
  // Flushed first: of a close that fails, HDF5 does not tell the cause.
  if (H5Fflush(id_, H5F_SCOPE_LOCAL) < 0) trouble("cannot be written");
  if (H5Fclose(std::exchange(id_, -1)) < 0) trouble("cannot be closed");
}

void Hdf5File::seal() const { write_seal(path_, seal_from_); }

void Hdf5File::set(const std::string& object, const std::vector<Attribute>& attributes) {
  const size_t slash = object.rfind('/');
  const bool in_group = slash != 0 && slash != object.npos;
  const Id owner =
      in_group ? opened(kept_->group_of(id_, object.substr(0, slash)), object.substr(slash + 1))
               : opened(id_, object);
  for (const auto& [name, value] : attributes) {
    const auto* number = std::get_if<int64_t>(&value);
    const char* text = number ? nullptr : std::get<std::string>(value).c_str();
    const bool set = number ? set_attribute(owner, name, H5T_STD_I64LE, kept_->scalar, number)
                            : set_attribute(owner, name, kept_->text, kept_->scalar, &text);
    if (!set) trouble(fmt::format("the attribute {} of {} cannot be written", name, object));
  }
}

void Hdf5File::set(const std::string& object, const char* name, const std::string& value) {
  set(object, {{name, value}});
}

void Hdf5File::set(const std::string& object, const char* name, int64_t value) {
  set(object, {{name, value}});
}

void Hdf5File::set(const std::string& object, const char* name,
                   const std::vector<std::string>& values) {
  const int64_t count = std::ssize(values);
  const Id owner = opened(id_, object), space = space_of({&count, 1});
  if (!set_attribute(owner, name, kept_->text, space, pointers_of(values).data()))
    trouble(fmt::format("the attribute {} of {} cannot be written", name, object));
}

bool Hdf5File::has(const std::string& object, const char* name) const {
  return H5Aexists_by_name(id_, object.c_str(), name, H5P_DEFAULT) > 0;
}

bool Hdf5File::has(const std::string& path) const {
  return H5Lexists(id_, path.c_str(), H5P_DEFAULT) > 0;
}

std::string Hdf5File::text(const std::string& object, const char* name) const {
  const Id attribute(H5Aopen_by_name(id_, object.c_str(), name, H5P_DEFAULT, H5P_DEFAULT));
  std::string value;
  check(attribute >= 0 && get_text(attribute, value),
        "{}: {} has no text attribute '{}': the file is no trace of this layout, or damaged", path_,
        object, name);
  return value;
}

int64_t Hdf5File::number(const std::string& object, const char* name) const {
  const Id attribute(H5Aopen_by_name(id_, object.c_str(), name, H5P_DEFAULT, H5P_DEFAULT));
  int64_t value = 0;
  check(attribute >= 0 && H5Aread(attribute, H5T_NATIVE_INT64, &value) >= 0,
        "{}: {} has no number attribute '{}': the file is no trace of this layout, or damaged",
        path_, object, name);
  return value;
}

std::map<std::string, std::string> Hdf5File::texts(const std::string& object) const {
  std::map<std::string, std::string> found;
  const Id owner = opened(id_, object);
  hsize_t next = 0;
  const auto take = [](hid_t from, const char* name, const H5A_info_t*, void* to) -> herr_t {
    const Id attribute(H5Aopen(from, name, H5P_DEFAULT));
    std::string value;
    if (get_text(attribute, value)) (*static_cast<decltype(found)*>(to))[name] = value;
    return 0;
  };
  if (owner < 0 || H5Aiterate2(owner, H5_INDEX_NAME, H5_ITER_INC, &next, take, &found) < 0)
    trouble("the attributes of " + object + " cannot be read");
  return found;
}

void Hdf5File::make_group(const std::string& path) {
  const Id links(H5Pcreate(H5P_LINK_CREATE));
  H5Pset_create_intermediate_group(links, 1);
  const Id group(H5Gcreate2(id_, path.c_str(), links, H5P_DEFAULT, H5P_DEFAULT));
  if (group < 0) trouble("the group " + path + " cannot be made");
}

template <typename T>
void Hdf5File::write(const std::string& path, const std::vector<T>& values,
                     std::vector<int64_t> dims) {
  const Id type = type_of<T>();
  const Id dataset(
      H5Dcreate2(id_, path.c_str(), type, space_of(dims), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
  herr_t done = -1;
  if constexpr (std::is_same_v<T, std::string>)
    done = H5Dwrite(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, pointers_of(values).data());
  else
    done = H5Dwrite(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
  if (dataset < 0 || (done < 0 && !values.empty()))
    trouble("the column " + path + " cannot be written");
}

// All reading goes through here: a link could lead to any file of the machine, a filter or chunks
// make many bytes of few.
int64_t Hdf5File::stored_dataset(const std::string& path) const {
  check(is_own(id_, path), "{}: {} is a link, and nothing of a trace is: write it into the file",
        path_, path);
  Id dataset(H5Dopen2(id_, path.c_str(), H5P_DEFAULT));
  if (dataset < 0) trouble(path + " is missing");
  const std::string_view where = elsewhere(dataset);
  check(where.empty(),
        "{}: {} {}, and a trace is contiguous and uncompressed: write it anew so, in "
        "h5py without chunks=, compression= and maxshape=",
        path_, path, where);
  const Id type(H5Dget_type(dataset));
  int64_t bytes = 0;
  const bool fits = !__builtin_mul_overflow(count_of(dataset), H5Tget_size(type), &bytes) &&
                    0 <= bytes && bytes <= bytes_ &&
                    std::cmp_less_equal(bytes, H5Dget_storage_size(dataset));
  check(fits, "{}: {} says that it has more bytes than are there: the file is damaged", path_,
        path);
  return dataset.release();
}

// Each text of a file is in it once, but a forged column can name one text many times.
std::vector<std::string> Hdf5File::read_texts(hid_t dataset, const std::string& path) const {
  constexpr int64_t kAtOnce = 64, kMostTimes = 64;
  const Id type = hdf5_text_type(), space(H5Dget_space(dataset));
  std::vector<std::string> values;
  int64_t length = 0;
  const int64_t count = count_of(dataset);
  // Some at a time, so that a forged column is noticed before it has filled the memory.
  for (int64_t first = 0; first < count; first += kAtOnce) {
    const hsize_t begin = first;
    const hsize_t n = std::min(kAtOnce, count - first);
    std::array<char*, kAtOnce> texts{};
    const Id part(H5Screate_simple(1, &n, nullptr));
    H5Sselect_hyperslab(space, H5S_SELECT_SET, &begin, nullptr, &n, nullptr);
    const herr_t done = H5Dread(dataset, type, part, space, H5P_DEFAULT, texts.data());
    for (size_t i = 0; i < n; ++i) {
      values.emplace_back(texts[i] ? texts[i] : "");
      length += std::ssize(values.back());
      H5free_memory(texts[i]);
    }
    if (done < 0) trouble("the column " + path + " cannot be read");
    check(length <= kMostTimes * bytes_,
          "{}: the texts of {} are longer than those of any file of its size: the file is damaged",
          path_, path);
  }
  return values;
}

// No conversion: a column of another type is of another layout, or damaged.
template <typename T>
std::vector<T> Hdf5File::read(const std::string& path) const {
  const Id dataset(stored_dataset(path));
  const Id type = type_of<T>();
  const Id stored(H5Dget_type(dataset));
  check(H5Tequal(type, stored) > 0,
        "{}: the column {} has another type than this layout says: it was "
        "written by something else, or is damaged",
        path_, path);
  if constexpr (std::is_same_v<T, std::string>) {
    return read_texts(dataset, path);
  } else {
    std::vector<T> values(count_of(dataset));
    if (!values.empty() && H5Dread(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) < 0)
      trouble("the column " + path + " cannot be read");
    return values;
  }
}

void Hdf5File::write_tensor(const std::string& path, const TensorView& tensor) {
  const int64_t place = place_tensor(path, tensor);
  written_->write(tensor.data, tensor.bytes(), place);
}

int64_t Hdf5File::place_tensor(const std::string& path, const TensorView& tensor) {
  const size_t slash = path.rfind('/');
  // HDF5 tells the cause of a failure until it is called again, also to let go of something.
  const auto failed = [&] { trouble("the tensor " + path + " cannot be written"); };
  const hid_t group = kept_->group_of(id_, path.substr(0, slash));
  if (group < 0) failed();
  const Id type = hdf5_type_of(tensor.dtype), space = space_of(tensor.shape.extents());
  const Id dataset(H5Dcreate2(group, path.substr(slash + 1).c_str(), type, space, H5P_DEFAULT,
                              kept_->datasets, H5P_DEFAULT));
  if (dataset < 0) failed();
  // From the begin of the file, user block included.
  const haddr_t place = H5Dget_offset(dataset);
  if (tensor.count() > 0 && place == HADDR_UNDEF) failed();
  return place;
}

Tensor Hdf5File::read_tensor(const std::string& path, const Shape& shape, DType dtype) const {
  const Id dataset(stored_dataset(path));
  const Id type = hdf5_type_of(dtype), stored(H5Dget_type(dataset));
  check(H5Tequal(type, stored) > 0 && std::ranges::equal(dims_of(dataset), shape.extents()),
        "{}: the tensor {} is not {} {} as the index says: the file is damaged", path_, path,
        name_of(dtype), shape.text());
  Tensor out(shape, dtype);
  // The file's own type is read: the library's conversion of 16-bit floats is a hundred times
  // slower.
  if (shape.count() > 0 &&
      H5Dread(dataset, stored, H5S_ALL, H5S_ALL, H5P_DEFAULT, out.view().data) < 0)
    trouble("the tensor " + path + " cannot be read");
  return out;
}

void Hdf5File::make_scale(const std::string& path, const std::string& name) {
  const Id dataset(H5Dopen2(id_, path.c_str(), H5P_DEFAULT));
  if (H5DSset_scale(dataset, name.c_str()) < 0) trouble(path + " cannot be made a scale");
}

void Hdf5File::attach_scale(const std::string& dataset, unsigned axis, const std::string& scale) {
  const Id of(H5Dopen2(id_, dataset.c_str(), H5P_DEFAULT));
  const Id with(H5Dopen2(id_, scale.c_str(), H5P_DEFAULT));
  if (H5DSattach_scale(of, with, axis) < 0) trouble(dataset + " cannot get the scale " + scale);
}

// The types that traces use; another one is a row here and in type_of.
template void Hdf5File::write(const std::string&, const std::vector<int32_t>&,
                              std::vector<int64_t>);
template void Hdf5File::write(const std::string&, const std::vector<int64_t>&,
                              std::vector<int64_t>);
template void Hdf5File::write(const std::string&, const std::vector<uint8_t>&,
                              std::vector<int64_t>);
template void Hdf5File::write(const std::string&, const std::vector<uint32_t>&,
                              std::vector<int64_t>);
template void Hdf5File::write(const std::string&, const std::vector<uint64_t>&,
                              std::vector<int64_t>);
template void Hdf5File::write(const std::string&, const std::vector<double>&, std::vector<int64_t>);
template void Hdf5File::write(const std::string&, const std::vector<std::string>&,
                              std::vector<int64_t>);
template std::vector<int32_t> Hdf5File::read(const std::string&) const;
template std::vector<int64_t> Hdf5File::read(const std::string&) const;
template std::vector<uint8_t> Hdf5File::read(const std::string&) const;
template std::vector<uint32_t> Hdf5File::read(const std::string&) const;
template std::vector<uint64_t> Hdf5File::read(const std::string&) const;
template std::vector<double> Hdf5File::read(const std::string&) const;
template std::vector<std::string> Hdf5File::read(const std::string&) const;

}  // namespace lockstep
