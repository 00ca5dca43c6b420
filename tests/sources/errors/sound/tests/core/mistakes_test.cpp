TEST_F(Mistakes, Negative) {
  expect_says(
      "attn: it is -1, "
      "give 1",
      [] {});
}

TEST_F(Mistakes, Silent) { expect(false); }
