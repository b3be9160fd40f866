#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Odd traces (Alibaba clusterdata#10/#230: missing ids, corrupt rows; Gavel#238: odd arrival times). Each case: NAME|expectation|rc|what is wrong
. "$(dirname "$0")/lib.sh"; cd $W || exit 1; bad=0
sim() { timeout 60 commensal simulate --trace "$1" --nodes 2 --gpus-per-node 4 --policy ${P:-fifo} ${3:-} --json out.json >o 2>e; rc=$?; }
t() { # t NAME FILE EXPECT(ok|refuse) [ARGS]: refuse = code 1..2 with file, line and value named and no traceback
  sim "$2" x "$4"; m=$(grep -v '^ ' e | tail -1 | cut -c1-170)
  if [ $3 = ok ]; then [ $rc = 0 ] && r=OK || r=FAIL; else { [ $rc = 1 ] || [ $rc = 2 ]; } && ! grep -q "Traceback\|terminate called" e && [ -s e ] && r=OK || r=FAIL; fi
  [ $rc = 0 ] && m="$m jobs=$("$PY" -c "import json;r=json.load(open('out.json'));print(r['results'][0]['metrics'].get('jobs'), 'avg_jct', r['results'][0]['metrics'].get('avg_jct'), r['trace'])" 2>&1 | cut -c1-150)"
  echo "$r $1 rc=$rc $m"; [ $r = FAIL ] && bad=$((bad+1)); rm -f out.json; }
H=job,submit,duration,gpus
printf "\xef\xbb\xbf$H\na,0,10,1\nb,1,10,1\n" >bom.csv; t bom bom.csv ok
printf "$H\r\na,0,10,1\r\nb,1,10,1\r\n" >crlf.csv; t crlf crlf.csv ok
printf "$H\n\na,0,10,1\n\n\nb,1,10,1\n\n" >empty.csv; t empty-lines empty.csv ok
printf "$H\na,0,10,1\nb,1,10,1" >noeol.csv; t no-last-newline noeol.csv ok
printf "\"job\",\"submit\",\"duration\",\"gpus\"\n\"a,x\",\"0\",\"10\",\"1\"\n\"b \"\"q\"\"\",1,10,1\n" >quoted.csv; t quoted quoted.csv ok
printf "\"job\",submit,duration,gpus\n\"a\nb\",0,10,1\n" >nlq.csv; t newline-in-quotes nlq.csv ok
printf " job , submit , duration , gpus \n a , 0 , 10 , 1 \n" >spaces.csv; t spaces spaces.csv ok
printf "Job,Submit,Duration,GPUs\na,0,10,1\n" >caps.csv; t capital-headings caps.csv refuse
printf "$H\na,-5,10,1\n" >neg.csv; t negative-submit neg.csv refuse
printf "$H\na,5,-10,1\n" >negd.csv; t negative-duration negd.csv refuse
printf "$H\na,0,0,1\nb,0,0,4\n" >zero.csv; t zero-duration zero.csv ok
printf "$H\na,0,10,0\n" >g0.csv; t zero-gpus g0.csv refuse
printf "$H\na,0,10,64\n" >big.csv; t bigger-than-cluster big.csv refuse
printf "$H\na,0,10,1\na,5,10,1\n" >dup.csv; t duplicate-job dup.csv refuse
printf "$H\na,nan,10,1\n" >nan.csv; t nan nan.csv refuse
printf "$H\na,inf,10,1\n" >inf.csv; t inf inf.csv refuse
printf "$H\na,1e308,1e308,1\n" >huge.csv; t huge-numbers huge.csv refuse
printf "$H\na,1e18,10,1\nb,0,1e15,1\n" >huge2.csv; t large-epochs huge2.csv ok
printf "$H\na,1606780800,10,1\n" >epoch.csv; t unix-epoch epoch.csv ok
printf "$H\na,0x10,10,1\n" >hex.csv; t hex hex.csv refuse
printf "$H\na,1;0,10,1\n" >semi.csv; t semicolon semi.csv refuse
printf "job;submit;duration;gpus\na;0;10;1\n" >semih.csv; t semicolon-separated semih.csv refuse
printf "job\tsubmit\tduration\tgpus\na\t0\t10\t1\n" >tab.csv; t tab-separated tab.csv refuse
printf "$H\na,\"1,000\",10,1\n" >thou.csv; t thousands thou.csv refuse
printf "$H\na,0,10\n" >short.csv; t short-row short.csv refuse
printf "$H\na,0,10,1,extra,extra\n" >long.csv; t long-row long.csv refuse
printf "$H\n" >none.csv; t no-rows none.csv refuse
printf "" >void.csv; t empty-file void.csv refuse
head -c 3000 /dev/urandom >rnd.csv; t random-bytes rnd.csv refuse
printf "$H\na\0b,0,10,1\n" >nul.csv; t nul-byte nul.csv refuse
printf "$H\n\xff\xfe,0,10,1\n" >badutf.csv; t invalid-utf8 badutf.csv ok
printf "\xff\xfej\0o\0b\0" >utf16.csv; t utf16 utf16.csv refuse
printf "$H,class\na,0,10,1,Guaranteed\n" >cls.csv; t class-capital cls.csv refuse
printf "$H,submit\na,0,10,1,5\n" >dupcol.csv; t duplicate-column dupcol.csv refuse
gzip -k -c crlf.csv >z.csv.gz; t gzipped z.csv.gz refuse
mkdir d.csv; t a-folder d.csv refuse
t missing-file nothing.csv refuse
P=srtf; printf "$H\na,0,1e-9,1\nb,0,1e-300,2\n" >tiny.csv; t tiny-durations tiny.csv ok; P=fifo
[ $bad = 0 ] && ok "all"; fail "$bad cases"
