// Keys and values written and read through block tables, in every type of memory, with blocks in shuffled places and
// tables of exactly the entries that are needed.
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "drive.h"

namespace drive {
namespace {

struct Layout {
    OctavoAttentionShape shape;
    int32_t kv_type;
    std::vector<std::pair<int64_t, int64_t>> sequences;  // keys in all, rows of them that are computed
};

// KV memory and a batch that names every block once.
class Paged {
public:
    explicit Paged(const Layout& layout)
        : shape_(layout.shape),
          num_rows_(rows_of(layout)),
          width_(width_of(layout)),
          keys_(slots(layout.shape) * layout.shape.num_kv_heads * layout.shape.head_dim * bytes_of(layout.kv_type)),
          values_(keys_.count()),
          key_scales_(slots(layout.shape) * layout.shape.num_kv_heads),
          value_scales_(key_scales_.count()),
          positions_(num_rows_),
          slots_(num_rows_),
          starts_(static_cast<int64_t>(layout.sequences.size()) + 1),
          tables_(static_cast<int64_t>(layout.sequences.size()) * width_, -1) {
        place(layout);
        const bool scaled = layout.kv_type == kOctavoKvInt8;
        batch_ = {keys_.data(),
                  values_.data(),
                  scaled ? key_scales_.data() : nullptr,
                  scaled ? value_scales_.data() : nullptr,
                  positions_.data(),
                  slots_.data(),
                  starts_.data(),
                  tables_.data(),
                  num_rows_,
                  static_cast<int64_t>(layout.sequences.size()),
                  width_,
                  width_,
                  layout.kv_type};
    }
    const OctavoBatch* batch() const { return &batch_; }
    int64_t num_rows() const { return num_rows_; }
    Memory<int32_t>& tables() { return tables_; }
    Memory<int64_t>& slots() { return slots_; }

    // Numbers for all tokens, those that the rows do not write too.
    void fill() {
        const Memory<float> numbers = random_floats(keys_.count(), 11);
        Random random(12);
        for (int64_t i = 0; i < keys_.count(); ++i) {
            keys_[i] = static_cast<uint8_t>(random.below(48));  // as fp32 and fp16: small and finite
            values_[i] = static_cast<uint8_t>(random.below(48));
        }
        for (int64_t i = 0; i < key_scales_.count(); ++i) key_scales_[i] = value_scales_[i] = numbers.data()[i] * 0.01f;
    }

private:
    static int64_t bytes_of(int32_t kv_type) { return kv_type == kOctavoKvFp32 ? 4 : kv_type == kOctavoKvFp16 ? 2 : 1; }
    static int64_t slots(const OctavoAttentionShape& shape) { return shape.num_blocks * shape.block_size; }
    static int64_t rows_of(const Layout& layout) {
        int64_t rows = 0;
        for (const auto& sequence : layout.sequences) rows += sequence.second;
        return rows;
    }
    static int64_t width_of(const Layout& layout) {
        int64_t width = 0;
        for (const auto& sequence : layout.sequences)
            width = std::max(width, divide_up(sequence.first, layout.shape.block_size));
        return width;
    }
    void place(const Layout& layout) {
        int64_t row = 0, used = 0;
        for (size_t s = 0; s < layout.sequences.size(); ++s) {
            const auto [context, computed] = layout.sequences[s];
            int32_t* table = tables_.data() + static_cast<int64_t>(s) * width_;
            for (int64_t b = 0; b < divide_up(context, shape_.block_size); ++b)
                table[b] = static_cast<int32_t>(used++ * 7 % shape_.num_blocks);  // 7 does not divide their number
            for (int64_t position = context - computed; position < context; ++position, ++row) {
                positions_[row] = static_cast<int32_t>(position);
                slots_[row] = table[position / shape_.block_size] * shape_.block_size + position % shape_.block_size;
            }
            starts_[static_cast<int64_t>(s) + 1] = static_cast<int32_t>(row);
        }
        require(used <= shape_.num_blocks && shape_.num_blocks % 7 != 0, "every block has one place");
    }

    OctavoAttentionShape shape_;
    int64_t num_rows_, width_;
    Memory<uint8_t> keys_, values_;
    Memory<float> key_scales_, value_scales_;
    Memory<int32_t> positions_;
    Memory<int64_t> slots_;
    Memory<int32_t> starts_, tables_;
    OctavoBatch batch_;
};

int32_t write_and_attend(Paged& paged, const OctavoAttentionShape& shape, Memory<float>& out) {
    const int64_t heads = shape.num_heads + 2 * shape.num_kv_heads, rope_rows = 1500;
    const Memory<float> qkv = random_floats(paged.num_rows() * heads * shape.head_dim, 21);
    const Memory<float> cos = random_floats(rope_rows * shape.head_dim / 2, 22);
    const Memory<float> sin = random_floats(rope_rows * shape.head_dim / 2, 23);
    Memory<float> q(out.count());
    const int32_t written =
        octavo_rotate_and_write_kv(qkv.data(), cos.data(), sin.data(), rope_rows, paged.batch(), &shape, q.data());
    const int32_t attended = octavo_attention(q.data(), paged.batch(), &shape, out.data());
    return written != kOctavoOk ? written : attended;
}

void attend(Digest& digest, const Layout& layout) {
    Paged paged(layout);
    paged.fill();
    Memory<float> out(paged.num_rows() * layout.shape.num_heads * layout.shape.head_dim);
    require(write_and_attend(paged, layout.shape, out) == kOctavoOk, "attention over a table");
    for (int64_t i = 0; i < out.count(); ++i) require(std::isfinite(out[i]), "attention is finite");
    digest.add(out);
}

void refuse(const Layout& layout) {
    Paged paged(layout);
    Memory<float> out(paged.num_rows() * layout.shape.num_heads * layout.shape.head_dim);
    for (int32_t wrong : {-1, static_cast<int32_t>(layout.shape.num_blocks), INT32_MAX, INT32_MIN}) {
        const int32_t right = std::exchange(paged.tables()[0], wrong);
        require(write_and_attend(paged, layout.shape, out) == kOctavoBadIndex, "a block outside the memory is refused");
        paged.tables()[0] = right;
        const int64_t slot = std::exchange(paged.slots()[0], int64_t{wrong} * 256);
        require(write_and_attend(paged, layout.shape, out) == kOctavoBadIndex, "a slot outside the memory is refused");
        paged.slots()[0] = slot;
    }
}

// As in a table whose first blocks have been freed: what lies wholly behind the window is not followed.
void attend_behind_a_window(Digest& digest, Layout layout) {
    layout.shape.window = 20;
    layout.sequences = {{600, 1}};
    Paged paged(layout);
    paged.fill();
    for (int64_t b = 0; (b + 1) * layout.shape.block_size <= 600 - 20; ++b) paged.tables()[b] = -1;
    Memory<float> out(layout.shape.num_heads * layout.shape.head_dim);
    require(write_and_attend(paged, layout.shape, out) == kOctavoOk, "blocks behind the window are not followed");
    digest.add(out);
}

}  // namespace

uint64_t attention() {
    Digest digest;
    for (int32_t kv_type : {kOctavoKvFp32, kOctavoKvFp16, kOctavoKvInt8})
        for (int64_t head_dim : {10, 64, 80})
            for (int64_t block_size : {1, 6, 16, 32}) {
                OctavoAttentionShape shape{6, 2, head_dim, block_size, 0, 0, 0.1f, 0.0f};
                Layout layout{shape, kv_type, {{20, 20}, {300, 1}, {0, 0}, {257, 3}, {1030, 1}}};
                layout.shape.num_blocks = divide_up(1607, block_size) + 5;
                layout.shape.num_blocks += layout.shape.num_blocks % 7 == 0;
                attend(digest, layout);
                layout.shape.window = 30;
                layout.shape.soft_cap = 5.0f;
                attend(digest, layout);
                refuse(layout);
                attend_behind_a_window(digest, layout);
            }
    return digest.value();
}

}  // namespace drive
