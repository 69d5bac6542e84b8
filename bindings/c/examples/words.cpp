// Counts the words of its standard input in a shared table. Any number of processes can count into one table at once:
//
//     cmake -S . -B build && cmake --build build && build/words shm://words < text
#include <guira.hpp>

#include <cstdint>
#include <iostream>
#include <string>

int main(int count, char **arguments)
{
    const char *url = count > 1 ? arguments[1] : "shm://words";
    try {
        // value() throws if the call failed; programs without exceptions test the result instead.
        guira::store store = guira::store::open_or_create(url).value();
        guira::client client = store.client().value();

        std::string word;
        while (std::cin >> word)
            client.increment(word).value();

        guira::scan scan = store.scan().value();
        while (auto item = scan.next().value()) {
            std::uint64_t number = 0; // little-endian
            for (std::size_t i = item->value.size(); i-- > 0;)
                number = number << 8 | static_cast<unsigned char>(item->value[i]);
            std::cout << item->key << ' ' << number << '\n';
        }
        client.close().value();
    } catch (const guira::failure &failure) {
        std::cerr << "words: " << failure.what() << '\n';
        return 1;
    }
}
