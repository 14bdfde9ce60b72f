/* SPDX-License-Identifier: Apache-2.0
 *
 * Settings read again while the daemon runs.
 */
#ifndef KR_RELOAD_H
#define KR_RELOAD_H

#include "daemon/setup.h"

/* Takes over from `fresh` what may change in a running daemon: those settings of `running` and
 * `fresh` change places, so that the old texts live until `fresh` is closed. tell() gets a sentence
 * about every setting that differs, whether it took effect or not. Returns how many need a restart.
 */
int reload_settings(struct setup *running, struct setup *fresh,
                    void (*tell)(bool took_effect, const char *sentence));

#endif
