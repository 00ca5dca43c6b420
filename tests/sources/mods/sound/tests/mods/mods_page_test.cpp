ATTN_PICTURE(3, diagonal());
