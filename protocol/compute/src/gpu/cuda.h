// The words that differ between OpenCL C and CUDA C++, as CUDA has them.
#define KERNEL extern "C" __global__ void __launch_bounds__(256, 2)
#define GLOBAL
#define LOCAL __shared__
#define LOCAL_POINTER
#define ALIGNED __attribute__((aligned(16)))
#define GROUP ((ulong)blockIdx.x)
#define ITEM ((int)threadIdx.x)
#define SYNC __syncthreads()
#define UNROLL _Pragma("unroll")
#define FOUR(x) make_float4(x, x, x, x)
#define DIVIDE(a, b) __fdiv_rn(a, b)
#define ROOT(a) __fsqrt_rn(a)
#define FUNCTION static __device__ __forceinline__
#define INFINITY __int_as_float(0x7f800000)
#define as_float(x) __uint_as_float(x)
#define as_uint(x) __float_as_uint(x)
typedef unsigned int uint;
typedef unsigned long long ulong;
