#include <gtest/gtest.h>
#include <chrono>
#include <map>
#include "support/cuda_world.hpp"
using namespace flashmoe;
using namespace flashmoe::test;
static void check_case(Problem p, Routing routing, std::vector<int64_t> tokens, int calls, Values values=Values::real) {
  auto experts = std::make_shared<DenseExperts>(p, 1, values);
  CudaWorld world(p, experts);
  for (int call=0; call<calls; ++call) {
    std::vector<Batch> b; std::vector<Batch*> ptr;
    for (int r=0;r<p.num_ranks;r++) b.push_back(make_batch(p, tokens[(r+call)%tokens.size()], 77+r+10*call, routing, values));
    for (auto& x: b) ptr.push_back(&x);
    world.call(ptr, p.max_tokens);
    for (int r=0;r<p.num_ranks;r++) {
      ASSERT_EQ(world.message(r), "") << r << " call " << call;
      auto ref = reference::layer(p, *experts, b[r].x_view(), b[r].routing());
      double e = reference::relative_l2(b[r].output(p), ref);
      EXPECT_LE(e, 1.25*tolerance(p.dtype)) << "rank " << r << " call " << call;
    }
  }
}
TEST(Light, OneRankCounted) { check_case({.num_ranks=1,.hidden=64,.intermediate=48,.num_experts=8,.top_k=2,.max_tokens=200,.wire_form=WireForm::counted,.wave_tokens=64}, Routing::distinct, {200}, 2); }
TEST(Light, OneRankLined) { check_case({.num_ranks=1,.hidden=64,.intermediate=48,.num_experts=8,.top_k=2,.max_tokens=100}, Routing::distinct, {100}, 2); }
TEST(Light, All) {
  for (WireForm wire : {WireForm::counted, WireForm::lined})
  for (ResultForm form : {ResultForm::per_route, ResultForm::pre_reduced})
  for (DType dtype : {DType::bf16, DType::fp16, DType::tf32, DType::fp64}) {
    if (wire == WireForm::lined && form == ResultForm::pre_reduced) continue;
    SCOPED_TRACE(std::string(to_string(wire))+" "+std::string(to_string(form))+" "+std::string(to_string(dtype)));
    check_case({.num_ranks=4,.hidden=72,.intermediate=200,.num_experts=8,.top_k=2,.max_tokens=300,.dtype=dtype,.wire_form=wire,.result_form=form,.wave_tokens=64}, Routing::any, {100,0,300,51,1}, 5);
    if (HasFatalFailure()) return;
  }
}
TEST(Light, NeverEnters) {
  Problem p{.num_ranks=3,.hidden=64,.intermediate=48,.num_experts=9,.top_k=2,.max_tokens=200,.wire_form=WireForm::counted,.wave_tokens=64};
  auto experts = std::make_shared<DenseExperts>(p, 1);
  CudaWorld world(p, experts, {.deadline_seconds=0.5});
  auto b0=make_batch(p,100,1), b2=make_batch(p,100,2);
  world.call({&b0,nullptr,&b2},200);
  printf("%s\n%s\n", world.message(0).c_str(), world.message(2).c_str());
  EXPECT_NE(world.message(0).find("rank 1"), std::string::npos);
  EXPECT_NE(world.message(2).find("rank 1"), std::string::npos);
}
static void time_case(const char* name, Problem p, int64_t tokens, int devices) {
  static std::map<int,std::shared_ptr<DenseExperts>> cache; auto& experts=cache[p.hidden]; if(!experts) experts = std::make_shared<DenseExperts>(p, 1);
  CudaWorld world(p, experts, {.deadline_seconds=5.0}, devices);
  std::vector<Batch> b; std::vector<CudaWorld::Uploaded> up;
  for (int r=0;r<p.num_ranks;r++) { b.push_back(make_batch(p,tokens,5+r)); up.push_back(world.upload(r,b[r])); }
  world.synchronize_all();
  auto once=[&]{ for (int r=0;r<p.num_ranks;r++) world.layer(r).forward({.x={up[r].x.as(),tokens},.routing={up[r].ids.as<int32_t>(),up[r].weights.as<float>()},.y={up[r].y.as(),tokens},.max_tokens=tokens}, world.stream(r)); };
  for (int i=0;i<5;i++) once();
  world.synchronize_all();
  auto t0=std::chrono::steady_clock::now(); int n=50;
  for (int i=0;i<n;i++) once();
  world.synchronize_all();
  double us=std::chrono::duration<double,std::micro>(std::chrono::steady_clock::now()-t0).count()/n;
  for (int r=0;r<p.num_ranks;r++) world.layer(r).status();
  auto st=world.context(0).state();
  printf("%s T=%ld ranks=%d gpus=%d: %.1f us/call, wire %.1f KB/call rank0 overhead %.1f KB, plan %s\n", name, (long)tokens, p.num_ranks, devices, us, st.payload_bytes/1e3/(n+5), st.overhead_bytes/1e3/(n+5), world.layer(0).plan(tokens).wire_form==WireForm::lined?"lined":"counted"); fflush(stdout);
}
TEST(Light, Timing) {
  int n=0; cudaGetDeviceCount(&n);
  int ranks = n>1?n:4;
  for (int64_t t : {16,128,1024}) {
    time_case("qwen3", {.num_ranks=ranks,.hidden=2048,.intermediate=768,.num_experts=128/ (n>1?1:4),.top_k=8,.max_tokens=t}, t, n>1?n:1);
    if (t<1024) time_case("qwen3 counted", {.num_ranks=ranks,.hidden=2048,.intermediate=768,.num_experts=128/(n>1?1:4),.top_k=8,.max_tokens=t,.wire_form=WireForm::counted}, t, n>1?n:1);
    time_case("thesis", {.num_ranks=ranks,.hidden=1024,.intermediate=4096,.num_experts=32/(n>1?1:4),.top_k=2,.max_tokens=t,.activation=Activation::relu,.gated=false}, t, n>1?n:1);
  }
}
