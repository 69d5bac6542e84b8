// Tests of guira.hpp: results, handles that close themselves, and buffers of every size.
#include <guira.hpp>

#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <type_traits>
#include <unistd.h>
#include <utility>

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                       \
            std::exit(1);                                                                                              \
        }                                                                                                              \
    } while (0)

static std::string url;

// The value of a temporary result is moved out of it: no reference to it remains.
static_assert(!std::is_reference_v<decltype(*std::declval<guira::result<guira::store>>())>);
static_assert(std::is_same_v<decltype(*std::declval<const guira::result<int> &>()), const int &>);

static void test_client(guira::store &store)
{
    guira::client client = store.client().value();
    CHECK(!client.get("cuckoo").value());
    CHECK(client.put("cuckoo", "Guira guira").value());
    CHECK(!client.put("cuckoo", "Guira Guira").value());
    CHECK(*client.get("cuckoo").value() == "Guira Guira");
    CHECK(client.contains("cuckoo").value() && !client.contains("condor").value());
    CHECK(!client.try_insert("cuckoo", "").value() && client.update("cuckoo", "short").value());
    CHECK(client.compare_and_swap("cuckoo", "long", "x").value() == guira::swap::different);
    CHECK(client.compare_and_swap("condor", "long", "x").value() == guira::swap::missing);
    CHECK(client.compare_and_swap("cuckoo", "short", "x").value() == guira::swap::done);
    CHECK(!client.get_versioned("condor").value());
    auto seen = client.get_versioned("cuckoo").value();
    CHECK(seen->value == "x");
    CHECK(client.compare_and_swap("cuckoo", seen->token, "y").value() == guira::swap::done);
    CHECK(client.compare_and_swap("cuckoo", seen->token, "z").value() == guira::swap::different);
    CHECK(client.compare_and_remove("cuckoo", seen->token).value() == guira::swap::different);
    CHECK(client.compare_and_remove("condor", "y").value() == guira::swap::missing);
    CHECK(client.put("heron", "Ardea").value());
    CHECK(client.compare_and_remove("heron", "Ardea").value() == guira::swap::done);
    CHECK(client.put("heron", "Ardea").value());
    auto heron = client.get_versioned("heron").value();
    CHECK(client.compare_and_remove("heron", heron->token).value() == guira::swap::done);
    CHECK(client.increment("visits", 41).value() == 41 && client.increment("visits").value() == 42);
    CHECK(client.remove("visits").value() && !client.remove("visits").value());

    // Values that fit in the small buffer, just not, and not at all; with zeros.
    for (std::size_t length : {0, 1, 255, 256, 257, 5000}) {
        std::string value(length, '\0');
        client.put("value", value).value();
        CHECK(client.get("value").value() == value && store.reader().value().get("value").value() == value);
        CHECK(client.get_versioned("value").value()->value == value);
        std::string buffer(length, 'x');
        CHECK(client.get("value", buffer.data(), buffer.size()).value() == length && buffer == value);
        if (length > 0)
            CHECK(client.get("value", buffer.data(), length - 1).error().code() == GUIRA_TOO_SMALL);
    }
    CHECK(!client.get("condor", nullptr, 0).value());
    client.remove("value").value();

    char value[2];
    guira_put_item puts[] = {{"a", 1, "1", 1, 0, 0}, {"b", 1, "2", 1, 0, 0}};
    guira_get_item gets[] = {{"a", 1, value, 1, 0, 0}, {"b", 1, value + 1, 1, 0, 0}};
    client.put_many(puts, 2).value();
    client.get_many(gets, 2).value();
    CHECK(value[0] == '1' && value[1] == '2' && gets[1].result == 1);
    std::size_t entries = 0;
    guira::scan scan = store.scan().value();
    while (auto item = scan.next().value())
        entries += item->key.size() == 1 && item->value.size() == 1;
    CHECK(entries == 2 && store.len_estimate().value().entries == 3);

    client.close().value();
    CHECK(client.put("cuckoo", "").error().code() == GUIRA_MISUSE);
    client.close().value();
}

static void test_results(guira::store &store)
{
    auto missing = guira::store::open("shm://guira-no-such-table");
    CHECK(!missing && !missing.has_value() && missing.error().code() == GUIRA_NOT_FOUND);
    CHECK(missing.error().effect() == GUIRA_EFFECT_NONE && !missing.error().message().empty());
#if defined(__cpp_exceptions)
    bool was_thrown = false;
    try {
        (void)missing.value();
    } catch (const guira::failure &failure) {
        was_thrown = failure.error().code() == GUIRA_NOT_FOUND && failure.what() == missing.error().message();
    }
    CHECK(was_thrown);
#endif
    auto refused = store.client().value().remove(std::string(70000, 'k'));
    CHECK(!refused && refused.error().code() == GUIRA_MISUSE);

    // A refused close keeps the handle.
    int closes = 0;
    auto open = *guira::store::open(url);
    guira_reader *raw = nullptr;
    CHECK(guira_reader_open(open.handle(), &raw, nullptr) == 0);
    guira::detail::owned<guira_reader> kept(raw);
    auto refuse = [&](guira_reader *, guira_error *error) {
        *error = guira_error{};
        return ++closes, error->code = GUIRA_MISUSE;
    };
    CHECK(guira::detail::closed(kept, refuse).error().code() == GUIRA_MISUSE && closes == 1 && kept.get() == raw);
    guira::reader again(std::move(kept));
    CHECK(!again.get("condor").value());
    again.close().value();
    CHECK(again.contains("condor").error().code() == GUIRA_MISUSE);

    // Handles move, and a client outlives its store.
    auto client = guira::store::open(url).value().client().value();
    guira::client moved = std::move(client);
    CHECK(moved.put("moved", "yes").value());
    auto reader = guira::store::open(url).value().reader();
    CHECK(reader && reader->contains("moved").value());
    CHECK((*reader).get("moved", nullptr, 0).error().code() == GUIRA_TOO_SMALL);
}

int main()
{
    url = "shm://guira-cpp-" + std::to_string(getpid()) + "-" + std::to_string(std::random_device()());
    std::atexit([] { (void)guira::store::destroy(url); });
    auto created = guira::store::create(url);
    CHECK(created && created->was_created());
    test_client(*created);
    test_results(*created);
    std::puts("all tests of guira.hpp passed");
}
