// SPDX-License-Identifier: Apache-2.0
// The kernel of fingerprint_kernel.cu as PTX, which the driver of any card since sm_75 compiles.
//
// Made by CUDA 13.0 and then marked as the oldest version that knows sm_75, 6.3:
//   nvcc -ptx -arch=compute_75 fingerprint_kernel.cu
#include "allocator/cuda/fingerprint.h"

namespace commensal {

// clang-format off
const char* const kFingerprintPtx = R"ptx(
.version 6.3
.target sm_75
.address_size 64
.visible .entry commensal_fingerprint(
.param .u64 commensal_fingerprint_param_0,
.param .u64 commensal_fingerprint_param_1,
.param .u64 commensal_fingerprint_param_2
)
{
.reg .pred %p<24>;
.reg .b32 %r<53>;
.reg .b64 %rd<86>;
ld.param.u64 %rd16, [commensal_fingerprint_param_0];
ld.param.u64 %rd17, [commensal_fingerprint_param_1];
ld.param.u64 %rd18, [commensal_fingerprint_param_2];
mov.u32 %r2, %ntid.x;
cvt.u64.u32 %rd1, %r2;
mov.u32 %r3, %ctaid.x;
mul.wide.u32 %rd21, %r3, %r2;
mov.u32 %r1, %tid.x;
cvt.u64.u32 %rd22, %r1;
add.s64 %rd81, %rd21, %rd22;
setp.ge.u64 %p1, %rd81, %rd17;
mov.u64 %rd84, 0;
mov.u64 %rd85, %rd84;
@%p1 bra $L__BB0_3;
mov.u32 %r4, %nctaid.x;
cvt.u64.u32 %rd25, %r4;
mul.lo.s64 %rd3, %rd25, %rd1;
cvta.to.global.u64 %rd4, %rd16;
mov.u64 %rd85, 0;
mov.u64 %rd84, %rd85;
$L__BB0_2:
shl.b64 %rd26, %rd81, 4;
add.s64 %rd27, %rd4, %rd26;
ld.global.v2.u64 {%rd28, %rd29}, [%rd27];
mul.lo.s64 %rd32, %rd81, 4354685564936845354;
add.s64 %rd33, %rd32, -7046029254386353131;
xor.b64 %rd34, %rd28, %rd33;
shr.u64 %rd35, %rd34, 32;
xor.b64 %rd36, %rd35, %rd34;
mul.lo.s64 %rd37, %rd36, -2960836687051489901;
shr.u64 %rd38, %rd37, 32;
xor.b64 %rd39, %rd38, %rd37;
mul.lo.s64 %rd40, %rd39, -2960836687051489901;
shr.u64 %rd41, %rd40, 32;
xor.b64 %rd42, %rd41, %rd40;
add.s64 %rd43, %rd32, 4354685564936845354;
xor.b64 %rd44, %rd29, %rd43;
shr.u64 %rd45, %rd44, 32;
xor.b64 %rd46, %rd45, %rd44;
mul.lo.s64 %rd47, %rd46, -2960836687051489901;
shr.u64 %rd48, %rd47, 32;
xor.b64 %rd49, %rd48, %rd47;
mul.lo.s64 %rd50, %rd49, -2960836687051489901;
shr.u64 %rd51, %rd50, 32;
xor.b64 %rd52, %rd51, %rd50;
mul.lo.s64 %rd53, %rd52, 3;
add.s64 %rd54, %rd42, %rd84;
add.s64 %rd84, %rd54, %rd53;
{
.reg .b64 %lhs;
.reg .b64 %rhs;
shl.b64 %lhs, %rd52, 17;
shr.b64 %rhs, %rd52, 47;
add.u64 %rd55, %lhs, %rhs;
}
xor.b64 %rd56, %rd55, %rd42;
mul.lo.s64 %rd57, %rd56, -2960836687051489901;
add.s64 %rd85, %rd57, %rd85;
add.s64 %rd81, %rd81, %rd3;
setp.lt.u64 %p2, %rd81, %rd17;
@%p2 bra $L__BB0_2;
$L__BB0_3:
cvta.to.global.u64 %rd13, %rd18;
mov.b64 {%r5,%r6}, %rd84;
mov.u32 %r45, 2;
mov.u32 %r46, 31;
mov.u32 %r47, 16;
mov.u32 %r48, -1;
shfl.sync.down.b32 %r8|%p3, %r6, %r47, %r46, %r48;
shfl.sync.down.b32 %r7|%p4, %r5, %r47, %r46, %r48;
mov.b64 %rd59, {%r7,%r8};
add.s64 %rd62, %rd59, %rd84;
mov.b64 {%r9,%r10}, %rd85;
shfl.sync.down.b32 %r12|%p5, %r10, %r47, %r46, %r48;
shfl.sync.down.b32 %r11|%p6, %r9, %r47, %r46, %r48;
mov.b64 %rd61, {%r11,%r12};
add.s64 %rd64, %rd61, %rd85;
mov.b64 {%r13,%r14}, %rd62;
mov.u32 %r49, 8;
shfl.sync.down.b32 %r16|%p7, %r14, %r49, %r46, %r48;
shfl.sync.down.b32 %r15|%p8, %r13, %r49, %r46, %r48;
mov.b64 %rd63, {%r15,%r16};
add.s64 %rd66, %rd63, %rd62;
mov.b64 {%r17,%r18}, %rd64;
shfl.sync.down.b32 %r20|%p9, %r18, %r49, %r46, %r48;
shfl.sync.down.b32 %r19|%p10, %r17, %r49, %r46, %r48;
mov.b64 %rd65, {%r19,%r20};
add.s64 %rd68, %rd65, %rd64;
mov.b64 {%r21,%r22}, %rd66;
mov.u32 %r50, 4;
shfl.sync.down.b32 %r24|%p11, %r22, %r50, %r46, %r48;
shfl.sync.down.b32 %r23|%p12, %r21, %r50, %r46, %r48;
mov.b64 %rd67, {%r23,%r24};
add.s64 %rd70, %rd67, %rd66;
mov.b64 {%r25,%r26}, %rd68;
shfl.sync.down.b32 %r28|%p13, %r26, %r50, %r46, %r48;
shfl.sync.down.b32 %r27|%p14, %r25, %r50, %r46, %r48;
mov.b64 %rd69, {%r27,%r28};
add.s64 %rd72, %rd69, %rd68;
mov.b64 {%r29,%r30}, %rd70;
shfl.sync.down.b32 %r32|%p15, %r30, %r45, %r46, %r48;
shfl.sync.down.b32 %r31|%p16, %r29, %r45, %r46, %r48;
mov.b64 %rd71, {%r31,%r32};
add.s64 %rd74, %rd71, %rd70;
mov.b64 {%r33,%r34}, %rd72;
shfl.sync.down.b32 %r36|%p17, %r34, %r45, %r46, %r48;
shfl.sync.down.b32 %r35|%p18, %r33, %r45, %r46, %r48;
mov.b64 %rd73, {%r35,%r36};
add.s64 %rd76, %rd73, %rd72;
mov.b64 {%r37,%r38}, %rd74;
mov.u32 %r51, 1;
shfl.sync.down.b32 %r40|%p19, %r38, %r51, %r46, %r48;
shfl.sync.down.b32 %r39|%p20, %r37, %r51, %r46, %r48;
mov.b64 %rd75, {%r39,%r40};
add.s64 %rd14, %rd75, %rd74;
mov.b64 {%r41,%r42}, %rd76;
shfl.sync.down.b32 %r44|%p21, %r42, %r51, %r46, %r48;
shfl.sync.down.b32 %r43|%p22, %r41, %r51, %r46, %r48;
mov.b64 %rd77, {%r43,%r44};
add.s64 %rd15, %rd77, %rd76;
and.b32 %r52, %r1, 31;
setp.ne.s32 %p23, %r52, 0;
@%p23 bra $L__BB0_5;
atom.global.add.u64 %rd78, [%rd13], %rd14;
add.s64 %rd79, %rd13, 8;
atom.global.add.u64 %rd80, [%rd79], %rd15;
$L__BB0_5:
ret;
}
)ptx";
// clang-format on

}  // namespace commensal
