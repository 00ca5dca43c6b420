ATTN_PICTURE(3, diagonal());
ATTN_WEIGHTS(twice());
ATTN_WEIGHTS(thrice());
