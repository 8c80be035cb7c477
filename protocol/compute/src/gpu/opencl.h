// The words that differ between OpenCL C and CUDA C++, as OpenCL has them.
#pragma OPENCL FP_CONTRACT OFF
#ifdef WIDE
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif
#define KERNEL __kernel __attribute__((reqd_work_group_size(256, 1, 1))) void
#define GLOBAL __global
#define LOCAL __local
#define LOCAL_POINTER __local
#define ALIGNED __attribute__((aligned(16)))
#define GROUP ((ulong)get_group_id(0))
#define ITEM ((int)get_local_id(0))
#define SYNC barrier(CLK_LOCAL_MEM_FENCE)
#define UNROLL _Pragma("unroll")
#define FOUR(x) (float4)(x)
#define DIVIDE(a, b) ((a) / (b))
#define ROOT(a) sqrt(a)
#define FUNCTION
