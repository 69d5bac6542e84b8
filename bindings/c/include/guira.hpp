/*
 * Guira for C++17: a layer over guira.h, which has what each call does, its errors, threads and lifetimes.
 *
 * Functions return a guira::result: a value, or a guira::error. Nothing throws, except result::value() if it has none,
 * and std::bad_alloc where a std::string is returned; without exceptions (-fno-exceptions) the program ends there.
 * Handles close themselves; close() reports failures.
 *
 *     auto store = guira::store::open_or_create("shm://birds").value();
 *     auto client = store.client().value();
 *     client.put("cuckoo", "Guira guira").value();
 *     std::optional<std::string> value = client.get("cuckoo").value();
 */
#ifndef GUIRA_HPP
#define GUIRA_HPP

#include "guira.h"

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

namespace guira {

/** The error of a call. */
class error {
public:
    explicit error(const guira_error &from) : code_(from.code), effect_(from.effect), message_(from.message) {}

    /** GUIRA_BUSY and so on. */
    int code() const noexcept { return code_; }
    /** GUIRA_EFFECT_NONE, GUIRA_EFFECT_DONE or GUIRA_EFFECT_UNKNOWN. */
    int effect() const noexcept { return effect_; }
    const std::string &message() const noexcept { return message_; }

private:
    int code_;
    int effect_;
    std::string message_;
};

/** The exception of result::value(). */
class failure : public std::runtime_error {
public:
    explicit failure(guira::error from) : std::runtime_error(from.message()), error_(std::move(from)) {}

    const guira::error &error() const noexcept { return error_; }

private:
    guira::error error_;
};

namespace detail {

/** Throws an error; without exceptions, ends the program. */
[[noreturn]] inline void fail(const guira::error &error)
{
#if defined(__cpp_exceptions)
    throw failure(error);
#else
    std::fputs(error.message().c_str(), stderr);
    std::abort();
#endif
}

} // namespace detail

/** A value, or the error of the call that should have returned it. */
template <typename T>
class [[nodiscard]] result {
public:
    result(T from) : is_(std::in_place_index<0>, std::move(from)) {}
    result(guira::error from) : is_(std::in_place_index<1>, std::move(from)) {}

    /** Whether there is a value. */
    bool has_value() const noexcept { return is_.index() == 0; }
    explicit operator bool() const noexcept { return has_value(); }

    /** Returns the value, or throws the error as a guira::failure. */
    T &value() & { return check(), **this; }
    const T &value() const & { return check(), **this; }
    T value() && { return check(), *std::move(*this); }

    /** The value, which must be there. That of a temporary result is moved out of it. */
    T &operator*() & noexcept { return *std::get_if<0>(&is_); }
    const T &operator*() const & noexcept { return *std::get_if<0>(&is_); }
    T operator*() && { return std::move(*std::get_if<0>(&is_)); }
    T *operator->() noexcept { return std::get_if<0>(&is_); }
    const T *operator->() const noexcept { return std::get_if<0>(&is_); }

    /** The error, which must be there. */
    const guira::error &error() const noexcept { return *std::get_if<1>(&is_); }

private:
    void check() const
    {
        if (!has_value())
            detail::fail(error());
    }

    std::variant<T, guira::error> is_;
};

/** Success, or an error. */
template <>
class [[nodiscard]] result<void> {
public:
    result() = default;
    result(guira::error from) : error_(std::move(from)) {}

    bool has_value() const noexcept { return !error_; }
    explicit operator bool() const noexcept { return has_value(); }
    void value() const
    {
        if (error_)
            detail::fail(*error_);
    }
    const guira::error &error() const noexcept { return *error_; }

private:
    std::optional<guira::error> error_;
};

/** A key and its value, from scan::next: valid until its next call. */
struct item {
    std::string_view key;
    std::string_view value;
};

/** A value, and the state in which its key was. */
struct versioned {
    std::string value;
    guira_token token;
};

/** The outcome of compare_and_swap and compare_and_remove. */
enum class swap { different = GUIRA_SWAP_DIFFERENT, done = GUIRA_SWAP_DONE, missing = GUIRA_SWAP_MISSING };

namespace detail {

/** Returns what `call` returns, an int, as a T. */
template <typename T, typename Call>
result<T> made(Call call)
{
    guira_error error;
    const int outcome = call(&error);
    if (outcome < 0)
        return guira::error(error);
    if constexpr (std::is_void_v<T>)
        return {};
    else
        return static_cast<T>(outcome);
}

/** Returns the value that `get` finds: get(buffer, capacity, &length, &error) is a lookup. */
template <typename Get>
result<std::optional<std::string>> found(Get get)
{
    char small[256];
    std::string large;
    char *buffer = small;
    std::size_t capacity = sizeof small;
    for (;;) {
        guira_error error;
        std::size_t length = 0;
        const int outcome = get(buffer, capacity, &length, &error);
        if (outcome == 0)
            return std::optional<std::string>();
        if (outcome == 1 && buffer == small)
            return std::optional<std::string>(std::in_place, small, length);
        if (outcome == 1) {
            large.resize(length);
            return std::optional<std::string>(std::move(large));
        }
        if (outcome != GUIRA_TOO_SMALL)
            return guira::error(error);
        // Another client may make it longer still.
        large.resize(length);
        buffer = large.data();
        capacity = length;
    }
}

/** Returns the length of a value that was copied to a buffer of the caller. */
template <typename Get>
result<std::optional<std::size_t>> copied(Get get)
{
    guira_error error;
    std::size_t length = 0;
    const int outcome = get(&length, &error);
    if (outcome < 0)
        return guira::error(error);
    return outcome == 0 ? std::optional<std::size_t>() : std::optional<std::size_t>(length);
}

struct close {
    void operator()(guira_store *handle) const noexcept { guira_store_close(handle); }
    void operator()(guira_client *handle) const noexcept { guira_client_close(handle, nullptr); }
    void operator()(guira_reader *handle) const noexcept { guira_reader_close(handle, nullptr); }
    void operator()(guira_scan *handle) const noexcept { guira_scan_close(handle, nullptr); }
};

template <typename Handle>
using owned = std::unique_ptr<Handle, close>;

/** Closes a handle by `with`, and keeps it if that was refused. */
template <typename Handle, typename With>
result<void> closed(owned<Handle> &handle, With with)
{
    guira_error error;
    const int outcome = with(handle.get(), &error);
    if (outcome != GUIRA_MISUSE)
        (void)handle.release();
    if (outcome < 0)
        return guira::error(error);
    return {};
}

/** Returns an object of the handle that `open` opens: open(&handle, &error). */
template <typename Object, typename Handle, typename Open>
result<Object> opened(Open open)
{
    guira_error error;
    Handle *handle = nullptr;
    if (open(&handle, &error) < 0)
        return guira::error(error);
    return Object(owned<Handle>(handle));
}

} // namespace detail

/** Reads and changes a table: one for each thread. */
class client {
public:
    explicit client(detail::owned<guira_client> handle) noexcept : handle_(std::move(handle)) {}

    /** Returns the value of a key, or nothing if there is no such key. Beyond 256 bytes it takes two lookups. */
    result<std::optional<std::string>> get(std::string_view key)
    {
        return detail::found([&](void *buffer, std::size_t capacity, std::size_t *length, guira_error *error) {
            return guira_get(handle_.get(), key.data(), key.size(), buffer, capacity, length, error);
        });
    }

    /** Copies the value of a key to `buffer` and returns its length; GUIRA_TOO_SMALL if it is too long. */
    result<std::optional<std::size_t>> get(std::string_view key, void *buffer, std::size_t capacity)
    {
        return detail::copied([&](std::size_t *length, guira_error *error) {
            return guira_get(handle_.get(), key.data(), key.size(), buffer, capacity, length, error);
        });
    }

    /** Returns the value of a key and the state that the key is in, for compare_and_swap. */
    result<std::optional<versioned>> get_versioned(std::string_view key)
    {
        guira_token token;
        auto found = detail::found([&](void *buffer, std::size_t capacity, std::size_t *length, guira_error *error) {
            return guira_get_versioned(
                handle_.get(), key.data(), key.size(), buffer, capacity, length, &token, error);
        });
        if (!found)
            return found.error();
        if (!*found)
            return std::optional<versioned>();
        return std::optional<versioned>(versioned{std::move(**found), token});
    }

    result<bool> contains(std::string_view key)
    {
        return detail::made<bool>(
            [&](guira_error *error) { return guira_contains(handle_.get(), key.data(), key.size(), error); });
    }

    /** Looks up many keys at once; each item has a result of its own. */
    result<void> get_many(guira_get_item *items, std::size_t count)
    {
        return detail::made<void>(
            [&](guira_error *error) { return guira_get_many(handle_.get(), items, count, error); });
    }

    /** Puts many keys; each item has a result of its own. */
    result<void> put_many(guira_put_item *items, std::size_t count)
    {
        return detail::made<void>(
            [&](guira_error *error) { return guira_put_many(handle_.get(), items, count, error); });
    }

    /** Inserts a key, or replaces its value; returns whether it was inserted. */
    result<bool> put(std::string_view key, std::string_view value) { return change<bool>(guira_put, key, value); }

    /** Inserts a key if it does not exist; returns whether it was inserted. */
    result<bool> try_insert(std::string_view key, std::string_view value)
    {
        return change<bool>(guira_try_insert, key, value);
    }

    /** Replaces the value of a key if it exists; returns whether it does. */
    result<bool> update(std::string_view key, std::string_view value)
    {
        return change<bool>(guira_update, key, value);
    }

    /** Removes a key; returns whether it existed. */
    result<bool> remove(std::string_view key)
    {
        return detail::made<bool>(
            [&](guira_error *error) { return guira_remove(handle_.get(), key.data(), key.size(), error); });
    }

    /** Replaces the value of a key if it has the expected one. */
    result<swap> compare_and_swap(std::string_view key, std::string_view expected, std::string_view value)
    {
        return detail::made<swap>([&](guira_error *error) {
            return guira_compare_and_swap(handle_.get(), key.data(), key.size(), expected.data(), expected.size(),
                                          value.data(), value.size(), error);
        });
    }

    /** Replaces the value of a key if no client has changed it since it was read. */
    result<swap> compare_and_swap(std::string_view key, const guira_token &expected, std::string_view value)
    {
        return detail::made<swap>([&](guira_error *error) {
            return guira_compare_and_swap_token(handle_.get(), key.data(), key.size(), &expected, value.data(),
                                                value.size(), error);
        });
    }

    /** Removes a key if it has the expected value. */
    result<swap> compare_and_remove(std::string_view key, std::string_view expected)
    {
        return detail::made<swap>([&](guira_error *error) {
            return guira_compare_and_remove(handle_.get(), key.data(), key.size(), expected.data(), expected.size(),
                                            error);
        });
    }

    /** Removes a key if no client has changed it since it was read. */
    result<swap> compare_and_remove(std::string_view key, const guira_token &expected)
    {
        return detail::made<swap>([&](guira_error *error) {
            return guira_compare_and_remove_token(handle_.get(), key.data(), key.size(), &expected, error);
        });
    }

    /** Adds to a number of 8 bytes, little-endian, modulo 2^64, and returns the sum. */
    result<std::uint64_t> increment(std::string_view key, std::uint64_t by = 1)
    {
        guira_error error;
        std::uint64_t sum = 0;
        if (guira_increment(handle_.get(), key.data(), key.size(), by, &sum, &error) < 0)
            return guira::error(error);
        return sum;
    }

    /**
     * Closes the client and reports failures. Later calls return GUIRA_MISUSE. After GUIRA_MISUSE the client is open
     * still.
     */
    result<void> close() { return detail::closed(handle_, guira_client_close); }

    guira_client *handle() const noexcept { return handle_.get(); }

private:
    template <typename T, typename Change>
    result<T> change(Change by, std::string_view key, std::string_view value)
    {
        return detail::made<T>([&](guira_error *error) {
            return by(handle_.get(), key.data(), key.size(), value.data(), value.size(), error);
        });
    }

    detail::owned<guira_client> handle_;
};

/** Looks up keys: one for each thread. */
class reader {
public:
    explicit reader(detail::owned<guira_reader> handle) noexcept : handle_(std::move(handle)) {}

    /** Returns the value of a key, or nothing if there is no such key. Beyond 256 bytes it takes two lookups. */
    result<std::optional<std::string>> get(std::string_view key)
    {
        return detail::found([&](void *buffer, std::size_t capacity, std::size_t *length, guira_error *error) {
            return guira_reader_get(handle_.get(), key.data(), key.size(), buffer, capacity, length, error);
        });
    }

    /** Copies the value of a key to `buffer` and returns its length; GUIRA_TOO_SMALL if it is too long. */
    result<std::optional<std::size_t>> get(std::string_view key, void *buffer, std::size_t capacity)
    {
        return detail::copied([&](std::size_t *length, guira_error *error) {
            return guira_reader_get(handle_.get(), key.data(), key.size(), buffer, capacity, length, error);
        });
    }

    result<bool> contains(std::string_view key)
    {
        return detail::made<bool>(
            [&](guira_error *error) { return guira_reader_contains(handle_.get(), key.data(), key.size(), error); });
    }

    /** Looks up many keys at once; each item has a result of its own. */
    result<void> get_many(guira_get_item *items, std::size_t count)
    {
        return detail::made<void>(
            [&](guira_error *error) { return guira_reader_get_many(handle_.get(), items, count, error); });
    }

    /** Closes the reader. Later calls return GUIRA_MISUSE. After GUIRA_MISUSE the reader is open still. */
    result<void> close() { return detail::closed(handle_, guira_reader_close); }

    guira_reader *handle() const noexcept { return handle_.get(); }

private:
    detail::owned<guira_reader> handle_;
};

/** Reads all keys and values. */
class scan {
public:
    explicit scan(detail::owned<guira_scan> handle) noexcept : handle_(std::move(handle)) {}

    /** Returns the next key and its value, or nothing at the end. */
    result<std::optional<item>> next()
    {
        guira_error error;
        const void *key, *value;
        std::size_t key_length, value_length;
        const int outcome = guira_scan_next(handle_.get(), &key, &key_length, &value, &value_length, &error);
        if (outcome < 0)
            return guira::error(error);
        if (outcome == 0)
            return std::optional<item>();
        return std::optional<item>(item{std::string_view(static_cast<const char *>(key), key_length),
                                        std::string_view(static_cast<const char *>(value), value_length)});
    }

    /** Closes the scan. Later calls return GUIRA_MISUSE. After GUIRA_MISUSE the scan is open still. */
    result<void> close() { return detail::closed(handle_, guira_scan_close); }

private:
    detail::owned<guira_scan> handle_;
};

/** An open table, for any number of threads. */
class store {
public:
    explicit store(detail::owned<guira_store> handle) noexcept : handle_(std::move(handle)) {}

    static result<store> open(const std::string &url, const guira_open_options *options = nullptr)
    {
        return detail::opened<store, guira_store>([&](guira_store **handle, guira_error *error) {
            return guira_open(url.c_str(), options, handle, error);
        });
    }

    static result<store> create(const std::string &url, const guira_create_options *options = nullptr)
    {
        return detail::opened<store, guira_store>([&](guira_store **handle, guira_error *error) {
            return guira_create(url.c_str(), options, handle, error);
        });
    }

    static result<store> open_or_create(const std::string &url, const guira_create_options *options = nullptr)
    {
        return detail::opened<store, guira_store>([&](guira_store **handle, guira_error *error) {
            return guira_open_or_create(url.c_str(), options, handle, error);
        });
    }

    /** Destroys a table: in processes that have it open, every operation returns GUIRA_GONE from then on. */
    static result<void> destroy(const std::string &url)
    {
        return detail::made<void>([&](guira_error *error) { return guira_destroy(url.c_str(), error); });
    }

    /** Whether this object created the table. */
    bool was_created() const noexcept { return guira_store_was_created(handle_.get()) == 1; }

    result<guira::client> client() const
    {
        return detail::opened<guira::client, guira_client>([&](guira_client **handle, guira_error *error) {
            return guira_client_open(handle_.get(), handle, error);
        });
    }

    result<guira::reader> reader() const
    {
        return detail::opened<guira::reader, guira_reader>([&](guira_reader **handle, guira_error *error) {
            return guira_reader_open(handle_.get(), handle, error);
        });
    }

    result<guira::scan> scan() const
    {
        return detail::opened<guira::scan, guira_scan>([&](guira_scan **handle, guira_error *error) {
            return guira_scan_open(handle_.get(), handle, error);
        });
    }

    result<guira_length_estimate> len_estimate() const
    {
        guira_error error;
        guira_length_estimate estimate;
        if (guira_len_estimate(handle_.get(), &estimate, &error) < 0)
            return guira::error(error);
        return estimate;
    }

    guira_store *handle() const noexcept { return handle_.get(); }

private:
    detail::owned<guira_store> handle_;
};

} // namespace guira

#endif
