#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# One device; a tenant with quota 1 sends an 'auto' job each 80 s, each runs 100 s; a guaranteed job of a tenant with quota 4 comes at 10 s.
# It must get the device when the job that runs then has ended, not after the last 'auto' job.
. "$(dirname "$0")/lib.sh"; cd "$W" || exit 1
{ echo job,submit,duration,gpus,tenant,class; for i in $(seq 0 59); do echo "a$i,$((i*80)),100,1,vision,auto"; done; echo vip,10,100,1,nlp,guaranteed; } >t.csv
echo '{"gpu_types":["v100"],"nodes":[{"count":1,"gpus":1,"gpu_type":"v100"}],"tenants":[{"name":"vision","quota":1},{"name":"nlp","quota":4}]}' >c.json
commensal simulate --trace t.csv --cluster c.json --policy antman --jobs-out j.csv >o 2>e || fail "$(grep -v '^ ' e | tail -1)"
w=$("$PY" -c 'import csv; print(int(float(next(r["waited"] for r in csv.DictReader(open("j.csv")) if r["job"] == "vip"))))')
[ "$w" -le 250 ] && ok "the guaranteed job waits $w s"; fail "the guaranteed job waits $w s, behind the upgrades of 'auto' jobs that came later"
