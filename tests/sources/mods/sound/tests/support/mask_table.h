add_mask(rows, "diagonal", attn::diagonal());
