/* SPDX-License-Identifier: Apache-2.0
 *
 * Written by tests/reference/make_tokenizer_tables.py; do not edit. The reference tokenizer splits
 * text by Unicode 16 and normalizes it by Unicode 9, whatever the libraries here know.
 */
#ifndef KR_TOKENIZER_UNICODE_H
#define KR_TOKENIZER_UNICODE_H

#include <stdint.h>

/* In \p{L} since Unicode 14. */
#define LETTERS_SINCE_14                                                                           \
    "\\x{1C89}-\\x{1C8A}\\x{A7CB}-\\x{A7CD}\\x{A7DA}-\\x{A7DC}\\x{105C0}-\\x{105F3}"               \
    "\\x{10D4A}-\\x{10D65}\\x{10D6F}-\\x{10D85}\\x{10EC2}-\\x{10EC4}\\x{1123F}-\\x{11240}"         \
    "\\x{11380}-\\x{11389}\\x{1138B}\\x{1138E}\\x{11390}-\\x{113B5}"                               \
    "\\x{113B7}\\x{113D1}\\x{113D3}\\x{11BC0}-\\x{11BE0}"                                          \
    "\\x{11F02}\\x{11F04}-\\x{11F10}\\x{11F12}-\\x{11F33}\\x{1342F}"                               \
    "\\x{13441}-\\x{13446}\\x{13460}-\\x{143FA}\\x{16100}-\\x{1611D}\\x{16D40}-\\x{16D6C}"         \
    "\\x{18CFF}\\x{1B132}\\x{1B155}\\x{1DF25}-\\x{1DF2A}"                                          \
    "\\x{1E030}-\\x{1E06D}\\x{1E4D0}-\\x{1E4EB}\\x{1E5D0}-\\x{1E5ED}\\x{1E5F0}"                    \
    "\\x{2B739}\\x{2EBF0}-\\x{2EE5D}\\x{31350}-\\x{323AF}"

/* In \p{N} since Unicode 14. */
#define NUMBERS_SINCE_14                                                                           \
    "\\x{10D40}-\\x{10D49}\\x{116D0}-\\x{116E3}\\x{11BF0}-\\x{11BF9}\\x{11F50}-\\x{11F59}"         \
    "\\x{16130}-\\x{16139}\\x{16D70}-\\x{16D79}\\x{1CCF0}-\\x{1CCF9}\\x{1D2C0}-\\x{1D2D3}"         \
    "\\x{1E4F0}-\\x{1E4F9}\\x{1E5F1}-\\x{1E5FA}"

/* All of \s but \r and \n. */
#define BLANKS                                                                                     \
    "\\x{9}\\x{B}-\\x{C}\\x{20}\\x{85}"                                                            \
    "\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}-\\x{2029}"                                       \
    "\\x{202F}\\x{205F}\\x{3000}"

/* First and last of what combines or decomposes in some Unicode after 9, ascending. */
static const int32_t normalization_barriers[][2] = {
    {0x005C8, 0x005C9}, {0x007FD, 0x007FD}, {0x00897, 0x0089F}, {0x008CA, 0x008D3},
    {0x009FE, 0x009FE}, {0x00C3C, 0x00C3C}, {0x00D3B, 0x00D3C}, {0x00EBA, 0x00EBA},
    {0x011A7, 0x011A7}, {0x01715, 0x01715}, {0x01ABF, 0x01AF0}, {0x01DF6, 0x01DFA},
    {0x0A82C, 0x0A82C}, {0x105C9, 0x105C9}, {0x105D2, 0x105D2}, {0x105DA, 0x105DA},
    {0x105E4, 0x105E4}, {0x10D24, 0x10D27}, {0x10D69, 0x10D6D}, {0x10EAB, 0x10EAC},
    {0x10ECB, 0x10ECF}, {0x10EF0, 0x10EFB}, {0x10EFD, 0x10EFF}, {0x10F46, 0x10F50},
    {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x11382, 0x11385},
    {0x1138B, 0x1138B}, {0x1138E, 0x1138E}, {0x11390, 0x11391}, {0x113B8, 0x113B8},
    {0x113BB, 0x113BB}, {0x113C2, 0x113C2}, {0x113C5, 0x113C5}, {0x113C7, 0x113C9},
    {0x113CE, 0x113D0}, {0x1145E, 0x1145E}, {0x11839, 0x1183A}, {0x11930, 0x11930},
    {0x11935, 0x11935}, {0x11938, 0x11938}, {0x1193D, 0x1193E}, {0x11943, 0x11943},
    {0x119E0, 0x119E0}, {0x11A34, 0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99},
    {0x11D42, 0x11D42}, {0x11D44, 0x11D45}, {0x11D97, 0x11D97}, {0x11F41, 0x11F42},
    {0x1611E, 0x16129}, {0x1612F, 0x1612F}, {0x16D63, 0x16D63}, {0x16D67, 0x16D6A},
    {0x16FF0, 0x16FF1}, {0x1D127, 0x1D128}, {0x1D250, 0x1D252}, {0x1D25B, 0x1D25C},
    {0x1D25F, 0x1D25F}, {0x1D280, 0x1D281}, {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136},
    {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF}, {0x1E5EE, 0x1E5EF},
    {0x1E6E3, 0x1E6E3}, {0x1E6E6, 0x1E6E6}, {0x1E6EE, 0x1E6EF}, {0x1E6F5, 0x1E6F5},
};

#endif
