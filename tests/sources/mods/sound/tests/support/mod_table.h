score("twice", attn::twice());
score("thrice", attn::thrice());
