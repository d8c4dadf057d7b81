// The end of a binary row in registers, for tiers with AVX-512.

inline __mmask16 lanes_of(int64_t left) {
    return left >= kLanes ? __mmask16(0xffff) : __mmask16((1u << left) - 1);
}

// What most rows are, so that nothing is asked pixel by pixel. Plain: added to a residual, kept,
// and written as bits of whole words. Bits: nothing but bits of whole words, by a range of counts.
enum class Form { Any, Plain, Bits };

inline Form form_of(const FinishRow& row) {
    if (!row.bits || row.channels % kWordBits != 0) return Form::Any;
    if (row.span) return Form::Bits;
    return row.residual && row.kept && !row.shift ? Form::Plain : Form::Any;
}

// The end of sixteen channels: vectors in registers, one pixel after the other.
template <Finish kind>
struct Ending {
    int64_t channel;
    __mmask16 lanes;
    bool closes;  // whether the upper half of its word of bits has no channels
    __m512 scale, bias, slope, shift_in, shift_out, low, high, shift;

    Ending(const FinishRow& row, int64_t first) : channel(first) {
        lanes = lanes_of(row.channels - first);
        closes = first % kWordBits == 0 && first + kLanes >= row.channels;
        scale = vector(row.scale);
        bias = vector(row.bias);
        slope = shift_in = shift_out = low = high = _mm512_setzero_ps();
        if (kind == Finish::Prelu || kind == Finish::Rprelu) slope = vector(row.slope);
        if (kind == Finish::Rprelu) shift_in = vector(row.shift_in);
        if (kind == Finish::Rprelu) shift_out = vector(row.shift_out);
        if (kind == Finish::Between) low = vector(row.between_low);
        if (kind == Finish::Between) high = vector(row.between_high);
        if (kind == Finish::Clamp) low = _mm512_set1_ps(row.low);
        if (kind == Finish::Clamp) high = _mm512_set1_ps(row.high);
        shift = row.shift ? vector(row.shift) : _mm512_setzero_ps();
    }

    __m512 vector(const float* values) const {
        return _mm512_maskz_loadu_ps(lanes, values + channel);
    }

    __m512 activated(__m512 t) const {
        const __m512 zero = _mm512_setzero_ps(), one = _mm512_set1_ps(1.0f);
        const __m512 minus = _mm512_set1_ps(-1.0f);
        if (kind == Finish::Relu) return _mm512_max_ps(zero, t);
        if (kind == Finish::Clamp) return _mm512_min_ps(high, _mm512_max_ps(low, t));
        if (kind == Finish::Sign)
            return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(t, zero, _CMP_GE_OQ), minus, one);
        if (kind == Finish::Between) {
            __mmask16 inside = _mm512_cmp_ps_mask(t, low, _CMP_GE_OQ);
            inside = _mm512_mask_cmp_ps_mask(inside, t, high, _CMP_LE_OQ);
            return _mm512_mask_blend_ps(inside, minus, one);
        }
        if (kind == Finish::Prelu)
            return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(t, zero, _CMP_GE_OQ),
                                        _mm512_mul_ps(slope, t), t);
        if (kind == Finish::Rprelu) {
            __m512 u = _mm512_add_ps(t, shift_in);
            u = _mm512_mask_blend_ps(_mm512_cmp_ps_mask(u, zero, _CMP_GE_OQ),
                                     _mm512_mul_ps(slope, u), u);
            return _mm512_add_ps(u, shift_out);
        }
        return t;
    }

    template <Form form>
    void write_bits(const FinishRow& end, int64_t pixel, __mmask16 signs) const {
        uint32_t* word = end.bits + pixel * end.bits_pitch + channel / kWordBits;
        if (form == Form::Any && closes)
            *word = signs;
        else
            reinterpret_cast<uint16_t*>(word)[channel / kLanes % 2] = signs;
    }

    template <Form form>
    inline __attribute__((always_inline)) void finish(const FinishRow& end, int64_t p,
                                                      __m512i count) const {
        constexpr bool plain = form == Form::Plain;
        int64_t limit = end.classes[p] * end.base_pitch + channel;
        __m512i dot = _mm512_sub_epi32(_mm512_loadu_si512(end.base + limit), count);
        if (form == Form::Bits || (!plain && end.span)) {
            __m512i span = _mm512_loadu_si512(end.span + limit);
            return write_bits<form>(end, p, _mm512_mask_cmple_epu32_mask(lanes, dot, span));
        }
        dot = _mm512_sub_epi32(dot, count);
        __m512 t = _mm512_add_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(dot), scale), bias);
        int64_t place = p * end.output_pitch + channel;
        if (plain || end.residual)
            t = _mm512_add_ps(t, _mm512_maskz_loadu_ps(lanes, end.residual + place));
        t = activated(t);
        if (plain || end.kept) _mm512_mask_storeu_ps(end.output + place, lanes, t);
        if (!plain && !end.bits) return;
        if (!plain && end.shift) t = _mm512_add_ps(t, shift);
        const __m512 zero = _mm512_setzero_ps();
        write_bits<form>(end, p, _mm512_mask_cmp_ps_mask(lanes, t, zero, _CMP_GE_OQ));
    }
};
